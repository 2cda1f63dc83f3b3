"""The operator on a GPU: times beside others and beside the memory-bound limit, and its promises."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from cosformer.report.document import GUIDE, Block, Document, Figure, Items, Line, Plot, Section, Table, Text
from cosformer.report.sections.common import (
    MODES,
    PHASE,
    PHASES,
    Record,
    again,
    hardware_words,
    lines,
    log_plot,
    made_words,
    source,
)
from cosformer.report.sections.operator_cpu import KNOWN
from cosformer.terminal import seconds, size, times

FORMAT = "cosformer operator benchmark on a GPU 2"
# Names of contenders, and the colours of those that the figure has.
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
COLOURS = {"cosformer": 0, "cosformer[triton]": 4, "sdpa": 1, "fla": 2, "fla-relu": 5}


class Results:
    def __init__(self, data: Record):
        self.data = data["gpu"]
        self.times = {
            (t["contender"], t["mode"], t["phase"], t["dim"], t["length"]): t["median_s"]
            for t in self.data["timings"]
            if "median_s" in t
        }
        self.peaks = {
            (m["contender"], m["mode"], m["dim"], m["length"]): m["extra_bytes"] for m in self.data["memory"]
        }

    def memory_bound(self, phase: str, dim: int, length: int) -> float:
        """Seconds to read every input and to write every output once."""
        tensors = 4 if phase == PHASES[0] else 12
        tokens = max(self.data["tokens"], length)
        return float(tensors * tokens * 16 * dim * 2 / self.data["bytes_per_second"])

    def against_length(self, name: str, mode: str, phase: str, dim: int) -> dict[int, float]:
        return {k[4]: x for k, x in sorted(self.times.items()) if k[:4] == (name, mode, phase, dim)}

    def slowest(self, name: str, mode: str, phase: str, dim: int, least: int, most: int) -> float | None:
        """Milliseconds, over the lengths from `least` to `most`."""
        found = [x for t, x in self.against_length(name, mode, phase, dim).items() if least <= t <= most]
        return max(found) * 1e3 if found else None


def variants(data: Record) -> Iterator[tuple[str, float]]:
    """Masks, documents and grouped heads, over the same tensors without them."""
    plain = {
        (v["mode"], v["phase"], v["length"]): v["median_s"] for v in data["variants"] if v["kind"] == "plain"
    }
    for v in data["variants"]:
        if v["kind"] != "plain":
            says = f"{v['kind']}, {v['mode']}, {v['phase']}, B = {v['batch']}, T = {v['length']:,}"
            yield says, v["median_s"] / plain[v["mode"], v["phase"], v["length"]]


def plot(record: Record, mode: str = "causal", phase: str = PHASE, dim: int = 64) -> Plot:
    """Time of one call against the length, at a constant number of tokens."""
    tokens = record["gpu"]["tokens"]
    timings = [
        t
        for t in record["gpu"]["timings"]
        if (t["mode"], t["phase"], t["dim"]) == (mode, phase, dim) and t["length"] <= tokens
    ]
    return log_plot(
        f"gpu-{mode}-{dim}",
        f"{mode.capitalize()}, {phase.replace('+', ' and ')}, head size {dim}",
        lines(timings, KNOWN, "median_s"),
        "time of a call",
        "The number of tokens is the same everywhere: cosFormer takes nearly the same time however they "
        "are cut into sequences, while softmax takes longer the longer the sequences are.",
        x_label=f"length of a sequence; {tokens:,} tokens in all",
    )


def section(record: Record) -> Section:
    """For the page."""
    drawn = {mode: plot(record, mode) for mode in MODES}
    rows = []
    for mode in MODES:
        found = {line.name: dict(line.points) for line in drawn[mode].lines}
        for length, ours in found.get("cosFormer", {}).items():
            softmax = found.get("softmax", {}).get(length)
            beside = [seconds(softmax), times(softmax / ours)] if softmax else ["-", "-"]
            rows.append([f"{mode}, {length:,.0f} tokens", seconds(ours), *beside])
    table = Table(["", "cosFormer", "softmax", "softmax / cosFormer"], rows, "Forward and backward.")
    title = f"The operator on a GPU: {hardware_words(record)}"
    return Section(title, [*drawn.values(), table, source(record)], "operator-gpu")


def crossover(ours: dict[int, float], theirs: dict[int, float]) -> float | None:
    """The length from which on ours is faster at every length that was measured; None where it is not at the
    longest, 0 where it always is. Between two lengths, times are taken to grow by powers."""
    lengths = sorted(set(ours) & set(theirs))
    slower = [t for t in lengths if ours[t] >= theirs[t]]
    if not lengths or (slower and slower[-1] == lengths[-1]):
        return None
    if not slower:
        return 0.0
    below = slower[-1]
    above = lengths[lengths.index(below) + 1]
    gain, lead = ours[below] / theirs[below], theirs[above] / ours[above]
    share = math.log(gain) / (math.log(gain) + math.log(lead)) if gain > 1 else 0.0
    return float(below * (above / below) ** share)


def figure(data: Record) -> Figure:
    """Causal, forward and backward: time a token, with the length from which on cosFormer is faster."""
    r, drawn = Results(data), []
    for dim in sorted({k[3] for k in r.times}):
        found = {
            n: {t: x / max(r.data["tokens"], t) for t, x in r.against_length(n, "causal", PHASE, dim).items()}
            for n in COLOURS
        }
        made = [Line(NAMES[n], list(own.items()), COLOURS[n]) for n, own in found.items() if own]
        lengths = sorted({t for own in found.values() for t in own})
        limit = r.memory_bound(PHASE, dim, 1) / r.data["tokens"]
        made.append(
            Line("every tensor read or written once", [(lengths[0], limit), (lengths[-1], limit)], GUIDE)
        )
        meets = crossover(found["cosformer"], found["sdpa"])
        says = "softmax is faster" if meets is None else "faster than softmax at every length"
        if meets:
            says = f"faster than softmax from T = {meets:,.0f} on"
            highest = max(x for own in found.values() for x in own.values())
            made.append(Line("as fast as softmax", [(meets, limit), (meets, highest)], GUIDE))
        title = f"D = {dim}: {says}"
        drawn.append(
            log_plot(f"token-{dim}", title, made, "time a token", x_label="length of a sequence, tokens")
        )
    heading = f"Causal attention, forward and backward, {data['hardware']['gpu']}, bfloat16, 16 heads"
    return Figure("Time a token against the length", drawn, heading)


def document(data: Record, promises: Iterable[Sequence[str]]) -> Document:
    """Everything, beside the record; the promises and what came of them are the benchmark's."""
    lead = (
        f"{data['hardware']['gpu']}, bfloat16, 16 heads, B x T = {data['gpu']['tokens']:,} tokens, and one "
        "row where T is more. Medians of single calls that find nothing of their own in the cache, from CUDA "
        "graphs where they can be captured; a copy moves "
        f"{data['gpu']['bytes_per_second'] / 1e12:.2f} TB/s, from which the memory-bound limits follow: "
        'every input read once, every output written once. cosFormer is what `backend="auto"` chooses.'
    )
    promised = Section("Targets", [Table(("target", "limit", "measured", "met"), list(promises))])
    sections = [promised, *_tables(data)]
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
        sections.append(Section("Not run", [Items(skipped)], brief=False))
    sections.append(Section("The machine", [Text(made_words(data)), *_remarks(data["gpu"])], brief=False))
    title = f"The operator on a GPU, {data['date'][:10]}"
    return Document(title, lead, [*sections, again(data)], opening=[figure(data)])


def _remarks(found: Record) -> Iterator[Block]:
    judged = {v["contender"] for v in found["gate"]}
    timed = {p["contender"] for p in found["parts"]}
    if timed - judged:
        yield Text(f"Timed, not judged: {'; '.join(NAMES[n] for n in NAMES if n in timed - judged)}.")
    if found.get("tuning"):
        spent = next(iter(found["tuning"].values()))
        yield Text(
            f"flash-linear-attention tunes itself: {spent['warmup']} + {spent['rep']} ms for each candidate."
        )
    for name, title in NAMES.items():
        forms = Counter(t["form"] for t in found["timings"] if t["contender"] == name and "form" in t)
        if forms:
            said = ", ".join(f"{form} in {count} cases" for form, count in sorted(forms.items()))
            yield Text(f"{title}: features were made eager and compiled, and the faster counts: {said}.")
    for name, reason in found["absent"].items():
        yield Text(f"Not in this run: {name} ({reason}).")
    if not found.get("finished", True):
        yield Text(f"The run was stopped before it had measured: {', '.join(_missing(found))}.")


def _tables(data: Record) -> Iterator[Section]:
    r = Results(data)
    for dim in sorted({t["dim"] for t in r.data["timings"]}):
        for mode in MODES:
            for phase in PHASES:
                raced = [n for n in NAMES if any(k[:4] == (n, mode, phase, dim) for k in r.times)]
                rows = []
                for length in sorted({k[4] for k in r.times}):
                    found = [r.times.get((n, mode, phase, dim, length)) for n in raced]
                    limit = r.memory_bound(phase, dim, length)
                    over = times(found[0] / limit) if found and found[0] else "-"
                    shown = (f"{x * 1e3:.3f} ms" if x else "-" for x in found)
                    rows.append((f"{length:,}", *shown, f"{limit * 1e3:.3f} ms", over))
                table = Table(("T", *(NAMES[n] for n in raced), "memory-bound limit", "ours / limit"), rows)
                yield Section(f"{mode.capitalize()}, {phase}, D = {dim}", [table], brief=False)
    shares = Table(("", "share"), [(says, f"{share:.2f}") for says, share in variants(r.data)])
    title = "Masks, documents, grouped heads: over the same tensors without them"
    yield Section(title, [shares], brief=False)
    peaks = [
        (NAMES[n], mode, f"{dim}", f"{length:,}", size(extra))
        for (n, mode, dim, length), extra in sorted(r.peaks.items())
        if length == 2048
    ]
    table = Table(("", "mode", "D", "T", "bytes"), peaks)
    yield Section("Peak extra memory, forward+backward, T = 2,048", [table], brief=False)
    judged = []
    for v in data["gpu"]["gate"]:
        name = NAMES.get(v["contender"], v["contender"]) + (f", {v['form']}" if "form" in v else "")
        worst = max((c["error"] for c in v["checks"]), default=float("nan"))
        judged.append((name, f"{v['dim']}", f"{worst:.1e}", v.get("reason", v["verdict"])))
    table = Table(("contender", "D", "largest relative error", "verdict"), judged)
    yield Section("Correct first", [table], brief=False)


def _missing(found: Record) -> Iterator[str]:
    """Who was not measured at which head sizes."""
    left = [p for p in found["planned"] if p not in found["parts"]]
    for name, title in NAMES.items():
        dims = [str(p["dim"]) for p in left if p["contender"] == name]
        if dims:
            yield f"{title} (D = {', '.join(dims)})"


def _case(timing: Record) -> str:
    name, mode, phase = NAMES[timing["contender"]], timing["mode"], timing["phase"]
    return f"{name}, {mode}, {phase}, D = {timing['dim']}, T = {timing['length']:,}"
