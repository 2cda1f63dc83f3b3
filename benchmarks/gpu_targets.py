"""The figures promised for a GPU (H200, bfloat16, 16 heads, B x T = 65,536 tokens), and what a run found. The
promises are not for editing."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from cosformer.report.sections.common import MODES, PHASES
from cosformer.report.sections.operator_gpu import Results, variants

FORWARD, BOTH = PHASES
PORTABLE, FAST = "cosformer[triton]", "cosformer"

# Milliseconds, forward and both, by mode and head size.
OF_PORTABLE = {
    ("causal", 64): (0.33, 1.4),
    ("bidirectional", 64): (0.21, 0.75),
    ("causal", 128): (1.7, 6.0),
    ("bidirectional", 128): (0.85, 2.8),
}
SHORT = (512, 8192)
# By mode, head size, phase and the lengths from and up to.
OF_HOPPER = {
    ("causal", 64, FORWARD, 512, 4096): 0.17,
    ("causal", 64, FORWARD, 8192, 8192): 0.20,
    ("causal", 64, FORWARD, 16384, 65536): 0.26,
    ("causal", 64, BOTH, 512, 4096): 0.70,
    ("causal", 64, BOTH, 16384, 65536): 0.90,
    ("bidirectional", 64, FORWARD, 512, 65536): 0.20,
    ("bidirectional", 64, BOTH, 512, 65536): 0.55,
    ("causal", 128, FORWARD, 512, 8192): 0.58,
    ("causal", 128, BOTH, 512, 8192): 2.3,
    ("bidirectional", 128, FORWARD, 2048, 65536): 0.45,
    ("bidirectional", 128, BOTH, 2048, 65536): 1.5,
}
HOST = {"triton": 0.08, "hopper": 0.06}  # milliseconds of a forward call
KERNELS = {"triton": "portable kernels", "hopper": "kernels for Hopper"}


class Row(NamedTuple):
    """A promise, its limit, what was measured, and whether that is enough."""

    says: str
    limit: str
    measured: str
    met: str


def at_most(says: str, limit: float, measured: float | None, unit: str = "") -> Row:
    if measured is None:
        return Row(says, f"<= {limit:g}{unit}", "-", "not measured")
    met = "yes" if measured <= limit else f"no, by {measured / limit - 1:.1%}"
    return Row(says, f"<= {limit:g}{unit}", f"{measured:.3g}{unit}", met)


def targets(data: dict[str, Any]) -> Iterator[Row]:
    r = Results(data)
    yield from _portable(r)
    if "hopper" in r.data["host"]:
        yield from _hopper(r)
    for name, modes in r.data["host"].items():
        for mode, found in modes.items():
            says = f"{KERNELS[name]}, {mode}: a forward call at B = 1, T = 2,048, without a graph"
            yield at_most(says, HOST[name], found * 1e3, " ms")
    for d in r.data["decoding"]:
        says = f"decoding, B = 64, position {d['position']:,}: over reading and writing the states once"
        yield at_most(says, 1.5, d["median_s"] / d["floor_s"])


def _portable(r: Results) -> Iterator[Row]:
    for (mode, dim), limits in OF_PORTABLE.items():
        for phase, limit in zip(PHASES, limits, strict=True):
            says = f"portable kernels, {mode}, D = {dim}, {phase}, T = 512 to 8,192: the slowest"
            yield at_most(says, limit, r.slowest(PORTABLE, mode, phase, dim, *SHORT), " ms")
            says = f"portable kernels, {mode}, D = {dim}, {phase}, B = 1, T = 65,536"
            yield at_most(says, 1.6 * limit, r.slowest(PORTABLE, mode, phase, dim, 65536, 65536), " ms")
    ours = r.times.get((PORTABLE, "causal", BOTH, 64, 2048))
    theirs = r.times.get(("fla", "causal", BOTH, 64, 2048))
    if ours and theirs:
        says = f"portable kernels, causal, {BOTH}, T = 2,048: share of the time of fla, cosFormer features"
        yield at_most(says, 0.2, ours / theirs)
    for mode in MODES:
        ours_at, theirs_at = (r.against_length(n, mode, BOTH, 64) for n in (PORTABLE, "sdpa"))
        shares = [ours_at[t] / x for t, x in theirs_at.items() if t >= 1024 and t in ours_at]
        says = f"portable kernels, {mode}, {BOTH}, from T = 1,024 on: the largest share of cuDNN's time"
        yield at_most(says, 1, max(shares, default=None))
        extra, theirs = (r.peaks.get((n, mode, 64, 2048)) for n in (PORTABLE, "sdpa"))
        if extra and theirs:
            says = f"portable kernels, {mode}, D = 64: peak extra memory over cuDNN's"
            yield at_most(says, 1.5, extra / theirs)
    for name, (short, long) in r.data["growth"].items():
        who = "portable kernels" if name == "triton" else "the kernels chosen"
        says = f"{who}, causal: time a token at 1M tokens over that at 64K"
        yield at_most(says, 1.15, long["seconds_per_token"] / short["seconds_per_token"])


def _hopper(r: Results) -> Iterator[Row]:
    for (mode, dim, phase, least, most), limit in OF_HOPPER.items():
        lengths = f"T = {least:,}" + (f" to {most:,}: the slowest" if most > least else "")
        says = f"kernels for Hopper, {mode}, D = {dim}, {phase}, {lengths}"
        yield at_most(says, limit, r.slowest(FAST, mode, phase, dim, least, most), " ms")
    for says, share in variants(r.data):
        yield at_most(f"kernels for Hopper, {says}: over the plain case", 1.15, share)
