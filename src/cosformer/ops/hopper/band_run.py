"""Heads with narrow windows on Hopper: which of them these kernels compute, and by which. Bands
(band_tiles.py): own tiles of 64 rows, weights in registers. Rings (ring_tiles.py): own tiles of 128, all that
they meet in shared memory at once, weights from phases."""

from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cosformer.ops.gpu.partition import sm_count
from cosformer.ops.hopper.band_bwd import band_bwd
from cosformer.ops.hopper.band_bwd_dkv import band_bwd_dkv
from cosformer.ops.hopper.band_bwd_dq import band_bwd_dq
from cosformer.ops.hopper.band_fwd import band_fwd
from cosformer.ops.hopper.launch_plan import HopperLaunchPlan, tma_can_read, tma_descriptor
from cosformer.ops.hopper.ring_bwd_dkv import ring_bwd_dkv
from cosformer.ops.hopper.ring_bwd_dq import ring_bwd_dq
from cosformer.ops.hopper.ring_fwd import ring_fwd

# B T H of the whole call from which on these kernels are ahead of the portable ones, causal and in both
# directions: with fewer, starting more kernels takes longer than what is gained.
MIN_ROWS = {True: 2**18, False: 2**20}
CHUNK, WIDTH = 64, 64
LONGEST_STRIP = 16  # tiles of a CTA
# Tiles for each warp of a CTA that mends: it looks at 32 marks a warp, and for dq at one more than its tiles.
MENDED = 31


class Kernels(NamedTuple):
    """`own`: rows of an own tile. `ctas`: for each SM, at least, where strips are shortened to get there."""

    fwd: Any
    bwd_dq: Any
    bwd_dkv: Any
    own: int
    warps: int
    ctas: float


BAND = Kernels(band_fwd, band_bwd_dq, band_bwd_dkv, 64, 4, 4)
RING = Kernels(ring_fwd, ring_bwd_dq, ring_bwd_dkv, 128, 8, 0.9)


def kernels_of(window: int, causal: bool) -> tuple[Kernels, int] | None:
    """The kernels that compute a window, and the reach that they are compiled for: tokens of the other side
    before an own tile, and in both directions as many behind it. None: the portable ones. In bands, two tiles
    on both sides would leave one CTA on an SM; rings mask by the sign of the cosine (ring_tiles.py), which
    does not do for 66 to 84 tokens in both directions."""
    if not causal and window <= CHUNK // 2 + 1:
        return BAND, CHUNK // 2  # two tiles are met, where whole ones on both sides would make three
    reach = CHUNK * max(1, -(-(window - 1) // CHUNK))
    if reach <= (2 * CHUNK if causal else CHUNK):
        return BAND, reach
    return (RING, reach) if reach <= 4 * CHUNK and 3 * window >= reach + 127 else None


def strip_size(tiles: int, rows: int, ctas: float) -> int:
    """Neighbouring tiles that one CTA computes, where each of `rows` rows (batch times heads) has `tiles`:
    fewer where there would be less than `ctas` CTAs."""
    size = LONGEST_STRIP
    while size > 1 and rows * -(-tiles // size) < ctas:
        size //= 2
    return size


def at_once(kernels: Kernels, reach: int, causal: bool, group: int, widest: int) -> bool:
    """Whether band_bwd.py computes the gradients: a tile meets two others, and no pair is seen in both."""
    return kernels is BAND and group == 1 and reach == (CHUNK if causal else CHUNK // 2) >= widest


class BandHeads:
    """The heads of `table` [n, 3], whose windows lie within `reach` tokens; others are not touched."""

    def __init__(
        self, plan: HopperLaunchPlan, tensors: dict[str, Tensor], table: Tensor, kernels: Kernels,
        reach: int, causal: bool, widest: int,
    ):  # fmt: skip
        self.plan, self.tensors, self.table, self.causal = plan, tensors, table, causal
        q, k = tensors["q"], tensors["k"]
        self.batch, self.length, self.group = q.shape[0], q.shape[1], q.shape[2] // k.shape[2]
        self.key_heads, self.tiles = table.shape[0], -(-self.length // kernels.own)
        self.before, self.behind = reach, 0 if causal else reach  # tokens beyond a tile of queries
        self.kernels, self.ctas = kernels, kernels.ctas * sm_count(q.device)
        # dk and dv of grouped heads are computed elsewhere, and need what these compute.
        self.aside = kernels is RING and self.group == 1
        self.at_once = at_once(kernels, reach, causal, self.group, widest)

    def queries(self, what: str, den: Tensor, inv_den: Tensor, delta: Tensor, eps: float) -> None:
        """ "o" and the denominators, or "dq" with inv_den and delta, and with dk and dv where these come at
        once."""
        spoilt = self._marks(self.group)
        if what == "o":
            self._queries(self.kernels.fwd, ("q", "k", "v", "out"), (den,), spoilt, eps, (False, True))
            return
        names, vectors = ("q", "k", "v", "out", "g", "dq"), (den, inv_den, delta)
        if self.at_once:
            tensors = self._tma((*names, "dk", "dv"), "")
            if self.behind:  # dq is stored in halves of tiles
                tensors[5] = tma_descriptor(self.tensors["dq"], self.behind, WIDTH)
            self._launch(band_bwd, None, tensors, (*vectors, spoilt), (eps,), den, (self.behind,), None)
            self._queries(self.kernels.bwd_dq, names, vectors, spoilt, eps, (True,))
            self._keys(inv_den, delta, spoilt, (True,))
        else:
            self._queries(self.kernels.bwd_dq, names, vectors, spoilt, eps, (False, True))

    def keys(self, inv_den: Tensor, delta: Tensor) -> None:
        """dk and dv; one query head for each key head."""
        if not self.at_once:
            self._keys(inv_den, delta, self._marks(1), (False, True))

    def _queries(
        self, kernel: Any, names: tuple[str, ...], vectors: tuple[Tensor, ...], spoilt: Tensor, eps: float,
        mends: tuple[bool, ...],
    ) -> None:  # fmt: skip
        tensors, reach = self._tma(names, "kv"), self._reach(self.before, self.behind)
        for mend in mends:
            pointers = (*vectors, spoilt)
            self._launch(kernel, self.group, tensors, pointers, (eps,), vectors[0], reach, mend)

    def _keys(self, inv_den: Tensor, delta: Tensor, spoilt: Tensor, mends: tuple[bool, ...]) -> None:
        tensors = self._tma(("q", "k", "v", "g", "dk", "dv"), "qg")
        reach, pointers = self._reach(self.behind, self.before), (inv_den, delta, spoilt)
        for mend in mends:
            self._launch(self.kernels.bwd_dkv, None, tensors, pointers, (), inv_den, reach, mend)

    def _reach(self, before: int, behind: int) -> tuple[int, int]:
        """What the kernels are compiled for, of tokens of the other side: bands for those before a tile and
        for the tiles that it meets, rings for tiles before and behind."""
        if self.kernels is RING:
            return before // CHUNK, behind // CHUNK
        return before, (before + behind) // CHUNK + 1

    def _tma(self, names: tuple[str, ...], others: str) -> list[Any]:
        """Descriptors: of own tiles, but of tiles of CHUNK rows of the other side's tensors."""
        rows = (CHUNK if n in others else self.kernels.own for n in names)
        return [tma_descriptor(self.tensors[n], r, WIDTH) for n, r in zip(names, rows, strict=True)]

    def _marks(self, group: int) -> Tensor:
        """Which own tiles of all rows are not finite."""
        return self.plan.empty((self.key_heads * group * self.batch * self.tiles,), torch.int32)

    def _launch(
        self, kernel: Any, group: int | None, descriptors: list[Any], pointers: tuple[Tensor, ...],
        rest: tuple[float, ...], vector: Tensor, reach: tuple[int, ...], mend: bool | None,
    ) -> None:  # fmt: skip
        """`group`, `mend`: None where the kernel has no such constant."""
        heads, warps = self.key_heads * (group or 1), self.kernels.warps
        strip = MENDED * warps if mend else strip_size(self.tiles, heads * self.batch, self.ctas)
        strips = -(-self.tiles // strip)
        arguments = (
            *descriptors, *pointers, self.table, heads, self.length, self.tiles, strips, strip, *rest,
            *vector.stride()[:2],
        )  # fmt: skip
        constants = (group, WIDTH, self.causal, *reach, mend, warps)
        self.plan.launch_tma(
            kernel, heads * self.batch * strips, arguments, tuple(x for x in constants if x is not None)
        )


def narrow_parts(
    plan: HopperLaunchPlan, tensors: dict[str, Tensor], table: Tensor, windows: list[int], causal: bool
) -> list[tuple[Tensor, BandHeads | None]]:
    """The heads of `table`, sorted by their windows, by the kernels that compute them; None: the portable
    ones (gpu/windows/band.py)."""
    q, k, v = tensors["q"], tensors["k"], tensors["v"]
    served = (
        q.dtype == torch.bfloat16 and q.shape[1] == k.shape[1]
        and q.numel() > 0 and q.shape[0] * q.shape[1] * q.shape[2] >= MIN_ROWS[causal]
        and max(k.shape[3], v.shape[3]) <= WIDTH and k.shape[3] % 8 == 0 and v.shape[3] % 8 == 0
        and all(tma_can_read(x) for x in tensors.values())
    )  # fmt: skip
    if not served:
        return [(table, None)]
    parts: list[tuple[Tensor, BandHeads | None]] = []
    first = 0
    for chosen, members in groupby(windows, lambda w: kernels_of(w, causal)):
        found = list(members)
        part = table[first : first + len(found)]
        first += part.shape[0]
        parts.append((part, chosen and BandHeads(plan, tensors, part, *chosen, causal, max(found))))
    return parts
