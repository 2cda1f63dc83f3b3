"""The report of a run on a GPU, rendered from its JSON record and from nothing else."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.contenders import MODES, PHASES
from benchmarks.terminal import markdown, plain, size, times

FORMAT = "cosformer operator benchmark on a GPU 1"
NAMES = {
    "cosformer": "cosFormer",
    "sdpa": "softmax (cuDNN)",
    "cosformer[chunked]": "cosFormer chunked",
    "authors": "authors' einsum",
    "authors-compiled": "the same, compiled",
    "fla": "fla, cosFormer features",
    "fla-relu": "fla, ReLU only",
}
SHORT = (512, 1024, 2048, 8192)


class Row(NamedTuple):
    """A promise, its limit, what was measured, and whether that is enough."""

    says: str
    limit: str
    measured: str
    met: str


class Results:
    def __init__(self, data: dict[str, Any]):
        self.data = data["gpu"]
        self.times = {
            (t["contender"], t["mode"], t["phase"], t["dim"], t["length"]): t["median_s"]
            for t in self.data["timings"]
            if "median_s" in t
        }
        self.peaks = {
            (m["contender"], m["mode"], m["dim"], m["length"]): m["extra_bytes"] for m in self.data["memory"]
        }

    def floor(self, phase: str, dim: int) -> float:
        tensors = 4 if phase == "forward" else 12
        return float(tensors * self.data["tokens"] * 16 * dim * 2 / self.data["bytes_per_second"])


# Milliseconds at B x T = 65,536, T from 512 to 8,192 (H200, bfloat16, 16 heads): forward, both.
PROMISED = {
    ("causal", 64): (0.33, 1.4),
    ("bidirectional", 64): (0.21, 0.75),
    ("causal", 128): (1.7, 6.0),
    ("bidirectional", 128): (0.85, 2.8),
}


def _at_most(says: str, limit: float, measured: float | None, unit: str = "") -> Row:
    if measured is None:
        return Row(says, f"<= {limit:g}{unit}", "-", "not measured")
    met = "yes" if measured <= limit else f"no, by {measured / limit - 1:.0%}"
    return Row(says, f"<= {limit:g}{unit}", f"{measured:.3g}{unit}", met)


def targets(r: Results) -> Iterator[Row]:
    for (mode, dim), limits in PROMISED.items():
        for phase, limit in zip(PHASES, limits, strict=True):
            found = [r.times.get(("cosformer", mode, phase, dim, t)) for t in SHORT]
            worst = max((x * 1e3 for x in found if x is not None), default=None)
            yield _at_most(f"{mode}, D = {dim}, {phase}, T = 512 to 8,192: the slowest", limit, worst, " ms")
            long = r.times.get(("cosformer", mode, phase, dim, 65536))
            says = f"{mode}, D = {dim}, {phase}, B = 1, T = 65,536"
            yield _at_most(says, 1.6 * limit, None if long is None else long * 1e3, " ms")
    both = PHASES[1]
    ours = {t: r.times.get(("cosformer", "causal", both, 64, t)) for t in (1024, 2048)}
    for rival, says in (("fla", "fla, cosFormer features"), ("fla-relu", "fla, ReLU only")):
        theirs = r.times.get((rival, "causal", both, 64, 2048))
        if theirs and ours[2048]:
            yield _at_most(
                f"causal, {both}, T = 2,048: our share of the time of {says}", 0.2, ours[2048] / theirs
            )
    for mode in MODES:
        mine, softmax = (r.times.get((n, mode, both, 64, 1024)) for n in ("cosformer", "sdpa"))
        if mine and softmax:
            yield _at_most(f"{mode}, {both}, T = 1,024: our share of cuDNN's time", 1, mine / softmax)
        extra, theirs = (r.peaks.get((n, mode, 64, 2048)) for n in ("cosformer", "sdpa"))
        if extra and theirs:
            yield _at_most(f"{mode}, D = 64: peak extra memory over cuDNN's", 1.5, extra / theirs)
        yield _at_most(f"{mode}: a forward call at B = 1, T = 2,048", 0.08, r.data["host"][mode] * 1e3, " ms")
    short, long = (g["seconds_per_token"] for g in r.data["growth"])
    yield _at_most("causal, time a token at 1M tokens over that at 64K", 1.15, long / short)
    for d in r.data["decoding"]:
        says = f"decoding, B = 64, position {d['position']:,}: over reading and writing the states once"
        yield _at_most(says, 1.5, d["median_s"] / d["floor_s"])


def _tables(data: dict[str, Any]) -> Iterator[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    r = Results(data)
    yield "Targets", ("target", "limit", "measured", "met"), [tuple(row) for row in targets(r)]
    for dim in sorted({t["dim"] for t in r.data["timings"]}):
        for mode in MODES:
            for phase in PHASES:
                raced = [n for n in NAMES if any(k[:4] == (n, mode, phase, dim) for k in r.times)]
                rows = []
                for length in sorted({k[4] for k in r.times}):
                    found = [r.times.get((n, mode, phase, dim, length)) for n in raced]
                    over = times(found[0] / r.floor(phase, dim)) if found and found[0] else "-"
                    rows.append((f"{length:,}", *(f"{x * 1e3:.3f} ms" if x else "-" for x in found), over))
                title = f"{mode.capitalize()}, {phase}, D = {dim} (floor {r.floor(phase, dim) * 1e3:.3f} ms)"
                yield title, ("T", *(NAMES[n] for n in raced), "ours / floor"), rows
    rows = [
        (NAMES[n], mode, f"{dim}", f"{length:,}", size(extra))
        for (n, mode, dim, length), extra in sorted(r.peaks.items())
        if length == 2048
    ]
    yield "Peak extra memory, forward+backward, T = 2,048", ("", "mode", "D", "T", "bytes"), rows
    rows = []
    for v in data["gpu"]["gate"]:
        worst = max((c["error"] for c in v["checks"]), default=float("nan"))
        rows.append((NAMES[v["contender"]], f"{v['dim']}", f"{worst:.1e}", v.get("reason", v["verdict"])))
    yield "Correct first", ("contender", "D", "largest relative error", "verdict"), rows


def to_markdown(data: dict[str, Any]) -> str:
    commit = data["commit"]
    parts = [
        f"# The operator on a GPU, {data['date'][:10]}",
        f"{data['hardware']['gpu']}, bfloat16, 16 heads, B x T = {data['gpu']['tokens']:,} tokens. Medians "
        "of single calls with a cold cache, from CUDA graphs where they can be captured; a copy moves "
        f"{data['gpu']['bytes_per_second'] / 1e12:.2f} TB/s, from which the floors follow: every input read "
        "once, every output written once. Slow rivals are timed at one length.",
    ]
    for title, header, rows in _tables(data):
        parts += [f"## {title}", markdown(header, tuple(rows), True)]
    versions = ", ".join(f"{n} {v}" for n, v in data["versions"].items())
    changed = ", with local changes" if commit["dirty"] else ""
    parts += ["## The machine", f"{versions}; commit {commit['id']}{changed}; {data['date']}."]
    for name, reason in data["gpu"]["absent"].items():
        parts.append(f"Not in this run: {name} ({reason}).")
    parts += ["## Again", f"```\n{data['command']}\n```"]
    return "\n\n".join(parts) + "\n"


def to_terminal(data: dict[str, Any]) -> str:
    title, header, rows = next(_tables(data))
    return f"{title}\n{plain(header, tuple(rows))}"
