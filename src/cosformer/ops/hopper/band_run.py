"""Heads with narrow windows on Hopper: which of them these kernels compute, and by which. Bands
(band_tiles.py): own tiles of 64 rows, weights in registers. Rings (ring_tiles.py): own tiles of 128, all that
they meet in shared memory at once, weights from phases."""

from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cosformer.ops.gpu.partition import sm_count
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
LONGEST_STRIP = 8  # tiles of a CTA


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


def tiles_behind(window: int) -> int:
    """How many tiles before its own a row sees."""
    return -(-(window - 1) // CHUNK)


def kernels_of(window: int, causal: bool) -> tuple[Kernels, int] | None:
    """The kernels that compute a window, and the tiles behind that they are compiled for; None: the portable
    ones. In bands, two tiles behind and two ahead would leave one CTA on an SM; rings mask by the sign of the
    cosine (ring_tiles.py), which does not do for 66 to 84 tokens in both directions."""
    behind = max(1, tiles_behind(window))
    if behind <= (2 if causal else 1):
        return BAND, behind
    return (RING, behind) if behind <= 4 and 3 * window >= CHUNK * behind + 127 else None


def strip_size(tiles: int, rows: int, ctas: float) -> int:
    """How many neighbouring tiles one CTA computes, of `rows` rows (batch times heads) of so many: fewer
    where there would be less than `ctas` CTAs."""
    size = LONGEST_STRIP
    while size > 1 and rows * -(-tiles // size) < ctas:
        size //= 2
    return size


class BandHeads:
    """The heads of `table` [n, 3], whose windows reach `behind` tiles back; others are not touched."""

    def __init__(
        self, plan: HopperLaunchPlan, tensors: dict[str, Tensor], table: Tensor, kernels: Kernels,
        behind: int, causal: bool,
    ):  # fmt: skip
        self.plan, self.tensors, self.table, self.causal = plan, tensors, table, causal
        q, k = tensors["q"], tensors["k"]
        self.batch, self.length, self.group = q.shape[0], q.shape[1], q.shape[2] // k.shape[2]
        self.key_heads = table.shape[0]
        self.behind, self.ahead = behind, 0 if causal else behind
        self.kernels, self.ctas = kernels, kernels.ctas * sm_count(q.device)

    def queries(self, what: str, den: Tensor, inv_den: Tensor, delta: Tensor, eps: float) -> None:
        """ "o" and the denominators, or "dq" with inv_den and delta."""
        reach = (self.behind, self.ahead)
        if what == "o":
            tensors = self._tma(("q", "k", "v", "out"), "kv")
            self._launch(self.kernels.fwd, self.group, tensors, (den,), (eps,), den, reach)
        else:
            tensors = self._tma(("q", "k", "v", "out", "g", "dq"), "kv")
            vectors = (den, inv_den, delta)
            self._launch(self.kernels.bwd_dq, self.group, tensors, vectors, (eps,), den, reach)

    def keys(self, inv_den: Tensor, delta: Tensor) -> None:
        """dk and dv; one query head for each key head."""
        tensors = self._tma(("q", "k", "v", "g", "dk", "dv"), "qg")
        reach = (self.ahead, self.behind)
        self._launch(self.kernels.bwd_dkv, None, tensors, (inv_den, delta), (), inv_den, reach)

    def _tma(self, names: tuple[str, ...], others: str) -> list[Any]:
        """Descriptors: of own tiles, but of tiles of CHUNK rows of the other side's tensors."""
        rows = (CHUNK if n in others else self.kernels.own for n in names)
        return [tma_descriptor(self.tensors[n], r, WIDTH) for n, r in zip(names, rows, strict=True)]

    def _launch(
        self, kernel: Any, group: int | None, descriptors: list[Any], pointers: tuple[Tensor, ...],
        rest: tuple[float, ...], vector: Tensor, reach: tuple[int, int],
    ) -> None:  # fmt: skip
        heads, tiles = self.key_heads * (group or 1), -(-self.length // self.kernels.own)
        strip = strip_size(tiles, heads * self.batch, self.ctas)
        strips = -(-tiles // strip)
        spoilt = self.plan.empty((heads * self.batch * tiles,), torch.int32)
        arguments = (
            *descriptors, *pointers, spoilt, self.table, heads, self.length, tiles, strips, strip, *rest,
            *vector.stride()[:2],
        )  # fmt: skip
        constants = (*(() if group is None else (group,)), WIDTH, self.causal, *reach)
        for mend in (False, True):
            self.plan.launch_tma(
                kernel, heads * self.batch * strips, arguments, (*constants, mend, self.kernels.warps)
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
        part = table[first : first + len(list(members))]
        first += part.shape[0]
        parts.append((part, chosen and BandHeads(plan, tensors, part, *chosen, causal)))
    return parts
