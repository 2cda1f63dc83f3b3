"""A picture of time a token against the length, with the length marked from which on cosFormer is faster."""

import math
from pathlib import Path
from typing import Any

from benchmarks.contenders import PHASES
from benchmarks.gpu_report import NAMES
from benchmarks.gpu_targets import Results

COLOURS = {"cosformer": "#D55E00", "cosformer[triton]": "#E69F00", "sdpa": "#0072B2", "fla": "#009E73",
           "fla-relu": "#56B4E9"}  # fmt: skip


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


def draw(data: dict[str, Any], path: Path) -> None:
    """Causal, forward and backward. Raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    r, phase, mode = Results(data), PHASES[1], "causal"
    dims = sorted({k[3] for k in r.times})
    size = (6.4 * len(dims), 4.9)
    figure, axes = plt.subplots(1, len(dims), figsize=size, squeeze=False, layout="constrained")
    for axis, dim in zip(axes[0], dims, strict=True):
        lines = {
            n: {t: x / max(r.data["tokens"], t) for t, x in r.against_length(n, mode, phase, dim).items()}
            for n in COLOURS
        }
        lengths = sorted({t for line in lines.values() for t in line})
        for name, line in lines.items():
            ours = name == "cosformer"
            if line:
                axis.plot(
                    sorted(line), [line[t] for t in sorted(line)], marker="o", color=COLOURS[name],
                    label=NAMES[name], lw=2.6 if ours else 1.6, markersize=5 if ours else 3.5,
                    zorder=4 if ours else 3,
                )  # fmt: skip
        floor = r.floor(phase, dim, 1) / r.data["tokens"]
        axis.axhline(floor, color="#8A8A8A", ls=(0, (4, 3)), lw=1.1)
        axis.annotate(
            "every tensor read or written once", (lengths[-1], floor), xytext=(0, -4),
            textcoords="offset points", ha="right", va="top", fontsize=8.5, color="#6A6A6A",
        )  # fmt: skip
        meets = crossover(lines["cosformer"], lines["sdpa"])
        says = "softmax is faster" if meets is None else "faster than softmax at every length"
        if meets:
            axis.axvline(meets, color="#444444", lw=1, ls=":", zorder=1)
            says = f"faster than softmax from T = {meets:,.0f} on"
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(lengths, [f"{t // 1024}K" if t >= 1024 else str(t) for t in lengths])
        axis.minorticks_off()
        axis.yaxis.set_major_formatter(lambda x, _: f"{x * 1e9:g} ns")
        axis.set_xlabel("length of a sequence, tokens")
        axis.set_ylabel("time a token")
        axis.set_title(f"D = {dim}: {says}", loc="left", fontsize=11)
        axis.grid(alpha=0.25)
        axis.legend(facecolor="white", edgecolor="none", framealpha=1, fontsize=9, loc="upper left")
    figure.suptitle(
        f"Causal attention, forward and backward, {data['hardware']['gpu']}, bfloat16, 16 heads", x=0.01,
        ha="left", fontsize=13, fontweight="bold",
    )  # fmt: skip
    figure.savefig(path, dpi=160)
    plt.close(figure)
