"""The report of a run of benchmarks.generation, rendered from its record and from nothing else."""

from pathlib import Path
from typing import Any

from benchmarks.machine import commit_words
from benchmarks.terminal import markdown, plain, seconds, size, times

FORMAT = "cosformer generation benchmark 1"
COLOURS = {"cosformer": "#D55E00", "softmax": "#0072B2", "llama": "#009E73"}
WITHIN = 1.2  # time per token at the longest context, as a multiple of that at the shortest


def _find(data: dict[str, Any], name: str, batch: int, context: int) -> dict[str, Any]:
    wanted = (name, batch, context)
    return next((r for r in data["results"] if (r["contender"], r["batch"], r["context"]) == wanted), {})


def _table(data: dict[str, Any], batch: int, field: str, show: Any) -> list[list[str]]:
    rows = []
    for context in data["settings"]["contexts"]:
        found = [_find(data, name, batch, context) for name in data["contenders"]]
        cells = [show(r[field]) if r.get(field) is not None else r.get("skipped", "-") for r in found]
        rows.append([f"{context:,}", *cells])
    return rows


def _growth(data: dict[str, Any], name: str, batch: int) -> tuple[int, int, float] | None:
    """(shortest, longest measured context, ratio of the times there)."""
    measured = [
        r for r in data["results"] if r["contender"] == name and r["batch"] == batch and "median_s" in r
    ]
    if len(measured) < 2:
        return None
    a, b = (f(measured, key=lambda r: r["context"]) for f in (min, max))
    return a["context"], b["context"], b["median_s"] / a["median_s"]


def findings(data: dict[str, Any]) -> list[list[str]]:
    """What was promised, and what came out."""
    rows = []
    for batch in data["settings"]["batches"]:
        sizes = {r["cache_bytes"] for r in data["results"]
                 if r["contender"] == "cosformer" and r["batch"] == batch and "cache_bytes" in r}  # fmt: skip
        if sizes:
            said = f"{size(max(sizes))} at every length" if len(sizes) == 1 else "grows"
            rows.append(
                [f"batch {batch}: cosFormer's cache is constant", said, "yes" if len(sizes) == 1 else "no"]
            )
        for name, title in data["contenders"].items():
            grown = _growth(data, name, batch)
            if grown is None:
                continue
            short, long, ratio = grown
            limit = name == "cosformer"
            promise = f"at most {times(WITHIN)}" if limit else "grows"
            met = ratio <= WITHIN if limit else ratio > WITHIN
            what = f"batch {batch}: {title}: time per token, {long:,} against {short:,} tokens ({promise})"
            rows.append([what, times(ratio), "yes" if met else "no"])
    return rows


def _disturbance(data: dict[str, Any]) -> str:
    share = data.get("others_share")
    if share is None or share < 0.05:
        return ""
    return f"**Disturbed run:** other processes took {share:.0%} of the cores while the clock ran."


def _sections(data: dict[str, Any]) -> list[tuple[str, list[str], list[list[str]]]]:
    header = ["tokens before", *data["contenders"].values()]
    found = [("What was promised", ["", "measured", "met"], findings(data))]
    for batch in data["settings"]["batches"]:
        found += [
            (f"Time of a token, batch {batch}", header, _table(data, batch, "median_s", seconds)),
            (f"Cache, batch {batch}", header, _table(data, batch, "cache_bytes", size)),
        ]
        if any("peak_bytes" in r for r in data["results"]):
            peaks = _table(data, batch, "peak_bytes", size)
            found.append((f"Peak memory beyond the model, batch {batch}", header, peaks))
    return found


def to_terminal(data: dict[str, Any]) -> str:
    tables = [f"{title}\n{plain(header, rows)}" for title, header, rows in _sections(data)]
    return "\n\n".join(filter(None, [_disturbance(data), *tables]))


def to_markdown(data: dict[str, Any], plot: str | None) -> str:
    s, hardware = data["settings"], data["hardware"]
    where = hardware.get("gpu") or f"{hardware['cpu']} ({s['threads']} threads)"
    parts = [
        f"# Generation: time, cache and memory, {data['date'][:10]}",
        f"One token at a time behind a context of so many tokens; models of {s['layers']} layers, width "
        f"{s['hidden_size']}, {s['heads']} heads, {s['dtype']}, random weights, on {where}. Times are "
        "medians over interleaved rounds of one process. Caches are filled with random numbers to the stated "
        "length; that cached decoding is right was shown first (below). Peak memory is that of a process of "
        "its own.",
        _disturbance(data),
        f"![Time of a token and cache against the context]({plot})" if plot else "",
    ]
    for title, header, rows in _sections(data):
        parts += [f"## {title}", markdown(header, rows)]
    gate = [
        [
            data["contenders"][n],
            f"{g['error']:.1e}",
            f"{g['allowed']:.0e}",
            "passed" if g["passed"] else "not timed",
        ]
        for n, g in data["gate"].items()
    ]
    parts += [
        "## Correct first",
        "Largest difference between cached and uncached logits, relative to the largest.",
    ]
    parts.append(markdown(["contender", "error", "allowed", "verdict"], gate))
    rows = [[k, str(v)] for part in (hardware, data["versions"], s) for k, v in part.items()]
    rows.append(["commit", commit_words(data["commit"])])
    if data.get("others_share") is not None:
        rows.append(["cores taken by other processes", f"{data['others_share']:.1%}"])
    rows.append(["date", data["date"]])
    parts += ["## The machine and the settings", markdown(["", ""], rows, figures=False)]
    parts += ["## Again", f"```\n{data['command']}\n```"]
    return "\n\n".join(filter(None, parts)) + "\n"


def draw(data: dict[str, Any], path: Path) -> None:
    """Log-log: time of a token and bytes of the cache, a column for each batch size."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    batches = data["settings"]["batches"]
    figure, axes = plt.subplots(
        2, len(batches), figsize=(5.4 * len(batches), 7.2), squeeze=False, layout="constrained", sharex=True
    )
    for column, batch in enumerate(batches):
        for row, (field, title, scale) in enumerate(
            (("median_s", "time of a token, ms", 1e3), ("cache_bytes", "cache, MiB", 2**-20))
        ):
            axis = axes[row][column]
            for name, label in data["contenders"].items():
                points = [(r["context"], r[field] * scale) for r in data["results"]
                          if r["contender"] == name and r["batch"] == batch and field in r]  # fmt: skip
                if points:
                    xs, ys = zip(*sorted(points), strict=True)
                    own = name == "cosformer"
                    axis.plot(xs, ys, marker="o", color=COLOURS[name], lw=2.6 if own else 1.6, label=label)
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            contexts = data["settings"]["contexts"]
            axis.set_xticks(contexts, [f"{x // 1024}K" if x % 1024 == 0 else str(x) for x in contexts])
            axis.minorticks_off()
            axis.set_title(f"batch {batch}: {title}", loc="left", fontsize=11)
            axis.grid(True, color="#ECECEC", lw=0.8)
            for side in ("top", "right"):
                axis.spines[side].set_visible(False)
            if row == 1:
                axis.set_xlabel("tokens before")
    axes[0][0].legend(frameon=False, fontsize=8.5)
    figure.savefig(path, dpi=150)
    plt.close(figure)
