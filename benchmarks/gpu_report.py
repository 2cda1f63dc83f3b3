"""The report of a run on a GPU, rendered from its JSON record and from nothing else."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from benchmarks import gpu
from benchmarks.contenders import MODES, PHASES
from benchmarks.gpu_targets import Results, targets, variants
from benchmarks.machine import commit_words
from benchmarks.terminal import markdown, plain, size, times

FORMAT = "cosformer operator benchmark on a GPU 2"
NAMES = {
    "cosformer": "cosFormer",
    "cosformer[triton]": "portable kernels",
    "sdpa": "softmax (cuDNN)",
    "fla": "fla, cosFormer features",
    "fla-relu": "fla, ReLU only",
    "authors": "authors' einsum",
    "authors-compiled": "authors' einsum, compiled",
    "cosformer[chunked]": "cosFormer chunked",
}


def _tables(data: dict[str, Any]) -> Iterator[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    r = Results(data)
    yield "Targets", ("target", "limit", "measured", "met"), [tuple(row) for row in targets(data)]
    for dim in sorted({t["dim"] for t in r.data["timings"]}):
        for mode in MODES:
            for phase in PHASES:
                raced = [n for n in NAMES if any(k[:4] == (n, mode, phase, dim) for k in r.times)]
                rows = []
                for length in sorted({k[4] for k in r.times}):
                    found = [r.times.get((n, mode, phase, dim, length)) for n in raced]
                    floor = r.floor(phase, dim, length)
                    over = times(found[0] / floor) if found and found[0] else "-"
                    shown = (f"{x * 1e3:.3f} ms" if x else "-" for x in found)
                    rows.append((f"{length:,}", *shown, f"{floor * 1e3:.3f} ms", over))
                title = f"{mode.capitalize()}, {phase}, D = {dim}"
                yield title, ("T", *(NAMES[n] for n in raced), "floor", "ours / floor"), rows
    rows = [(says, f"{share:.2f}") for says, share in variants(r.data)]
    yield "Masks, documents, grouped heads: over the same tensors without them", ("", "share"), rows
    rows = [
        (NAMES[n], mode, f"{dim}", f"{length:,}", size(extra))
        for (n, mode, dim, length), extra in sorted(r.peaks.items())
        if length == 2048
    ]
    yield "Peak extra memory, forward+backward, T = 2,048", ("", "mode", "D", "T", "bytes"), rows
    rows = []
    for v in data["gpu"]["gate"]:
        worst = max((c["error"] for c in v["checks"]), default=float("nan"))
        rows.append(
            (
                NAMES.get(v["contender"], v["contender"]) + (f", {v['form']}" if "form" in v else ""),
                f"{v['dim']}",
                f"{worst:.1e}",
                v.get("reason", v["verdict"]),
            )
        )
    yield "Correct first", ("contender", "D", "largest relative error", "verdict"), rows


def _missing(found: dict[str, Any]) -> Iterator[str]:
    """Who was not measured at which head sizes."""
    measured = {(p["contender"], p["dim"]) for p in found["parts"]}
    for name, title in NAMES.items():
        dims = gpu.DIMS[:1] if name in gpu.ONCE else gpu.DIMS
        left = [str(dim) for dim in dims if (name, dim) not in measured]
        if left and name not in found["absent"]:
            yield f"{title} (D = {', '.join(left)})"


def _case(timing: dict[str, Any]) -> str:
    name, mode, phase = NAMES[timing["contender"]], timing["mode"], timing["phase"]
    return f"{name}, {mode}, {phase}, D = {timing['dim']}, T = {timing['length']:,}"


def to_markdown(data: dict[str, Any], plot: str | None) -> str:
    parts = [
        f"# The operator on a GPU, {data['date'][:10]}",
        f"{data['hardware']['gpu']}, bfloat16, 16 heads, B x T = {data['gpu']['tokens']:,} tokens, and one "
        "row where T is more. Medians of single calls that find nothing of their own in the cache, from CUDA "
        "graphs where they can be captured; a copy moves "
        f"{data['gpu']['bytes_per_second'] / 1e12:.2f} TB/s, from which the floors follow: every input read "
        'once, every output written once. cosFormer is what `backend="auto"` chooses.',
        *([f"![Time a token against the length]({plot})"] if plot else []),
    ]
    for title, header, rows in _tables(data):
        parts += [f"## {title}", markdown(header, tuple(rows), True)]
    timings = data["gpu"]["timings"]
    there = {_case(t) for t in timings if "median_s" in t}
    skipped = sorted(
        {
            f"{_case(t)}{', peak memory' if _case(t) in there else ''}: "
            f"{t['skipped'].split('. ')[0].rstrip('.')}."
            for t in timings
            if "skipped" in t
        }
    )
    if skipped:
        parts += ["## Not run", "\n".join(f"- {line}" for line in skipped)]
    versions = ", ".join(f"{n} {v}" for n, v in data["versions"].items())
    parts += ["## The machine", f"{versions}; commit {commit_words(data['commit'])}; {data['date']}."]
    judged = {v["contender"] for v in data["gpu"]["gate"]}
    timed = {p["contender"] for p in data["gpu"]["parts"]}
    if timed - judged:
        parts.append(f"Timed, not judged: {'; '.join(NAMES[n] for n in NAMES if n in timed - judged)}.")
    if data["gpu"].get("tuning"):
        spent = next(iter(data["gpu"]["tuning"].values()))
        parts.append(
            f"flash-linear-attention tunes itself: {spent['warmup']} + {spent['rep']} ms for each candidate."
        )
    for name in NAMES:
        forms = Counter(t["form"] for t in timings if t["contender"] == name and "form" in t)
        if forms:
            said = ", ".join(f"{form} in {count} cases" for form, count in sorted(forms.items()))
            parts.append(
                f"{NAMES[name]}: features were made eager and compiled, and the faster counts: {said}."
            )
    for name, reason in data["gpu"]["absent"].items():
        parts.append(f"Not in this run: {name} ({reason}).")
    if not data["gpu"].get("finished", True):
        parts.append(f"The run was stopped before it had measured: {', '.join(_missing(data['gpu']))}.")
    parts += ["## Again", f"```\n{data['command']}\n```"]
    return "\n\n".join(parts) + "\n"


def to_terminal(data: dict[str, Any]) -> str:
    title, header, rows = next(_tables(data))
    return f"{title}\n{plain(header, tuple(rows))}"
