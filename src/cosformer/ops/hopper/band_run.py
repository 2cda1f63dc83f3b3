"""Heads with narrow windows on Hopper: which of them these kernels compute (band_tiles.py)."""

from typing import Any

import torch
from torch import Tensor

from cosformer.ops.gpu.partition import sm_count
from cosformer.ops.hopper.band_bwd_dkv import band_bwd_dkv
from cosformer.ops.hopper.band_bwd_dq import band_bwd_dq
from cosformer.ops.hopper.band_fwd import band_fwd
from cosformer.ops.hopper.launch_plan import HopperLaunchPlan, tma_can_read, tma_descriptor

# Rows of heads from which on these kernels are ahead of the portable ones, causal and in both directions:
# with fewer, starting more kernels takes longer than what is gained.
MIN_ROWS = {True: 2**18, False: 2**20}
CHUNK, WIDTH, WARPS = 64, 64, 4
LONGEST_STRIP = 8  # tiles of a CTA
WAVES = 2  # CTAs for each place on the GPU, at least, where strips are shortened to get there


def tiles_behind(window: int) -> int:
    """How many tiles before its own a row sees."""
    return -(-(window - 1) // CHUNK)


def strip_size(tiles: int, rows: int, sms: int) -> int:
    """Tiles a CTA takes of one of `rows` rows of heads."""
    size = LONGEST_STRIP
    while size > 1 and rows * -(-tiles // size) < 2 * WAVES * sms:
        size //= 2
    return size


class BandHeads:
    """The heads of `table` [n, 3], whose windows reach `behind` tiles back; others are not touched."""

    def __init__(
        self, plan: HopperLaunchPlan, tensors: dict[str, Tensor], table: Tensor, behind: int, causal: bool
    ):
        self.plan, self.tensors, self.table, self.causal = plan, tensors, table, causal
        q, k = tensors["q"], tensors["k"]
        self.batch, self.length, self.group = q.shape[0], q.shape[1], q.shape[2] // k.shape[2]
        self.key_heads = table.shape[0]
        self.behind, self.ahead = behind, 0 if causal else behind
        self.sms = sm_count(q.device)

    def queries(self, what: str, den: Tensor, inv_den: Tensor, delta: Tensor, eps: float) -> None:
        """ "o" and the denominators, or "dq" with inv_den and delta."""
        reach = (self.behind, self.ahead)
        if what == "o":
            self._launch(band_fwd, self.group, ("q", "k", "v", "out"), (den,), (eps,), den, reach)
        else:
            names = ("q", "k", "v", "out", "g", "dq")
            self._launch(band_bwd_dq, self.group, names, (den, inv_den, delta), (eps,), den, reach)

    def keys(self, inv_den: Tensor, delta: Tensor) -> None:
        """dk and dv; one query head for each key head."""
        reach = (self.ahead, self.behind)
        names = ("q", "k", "v", "g", "dk", "dv")
        self._launch(band_bwd_dkv, None, names, (inv_den, delta), (), inv_den, reach)

    def _launch(
        self, kernel: Any, group: int | None, names: tuple[str, ...], pointers: tuple[Tensor, ...],
        rest: tuple[float, ...], vector: Tensor, reach: tuple[int, int],
    ) -> None:  # fmt: skip
        heads, tiles = self.key_heads * (group or 1), -(-self.length // CHUNK)
        strip = strip_size(tiles, heads * self.batch, self.sms)
        strips = -(-tiles // strip)
        spoilt = self.plan.empty((heads * self.batch * tiles,), torch.int32)
        descriptors = [tma_descriptor(self.tensors[n], CHUNK, WIDTH) for n in names]
        arguments = (
            *descriptors, *pointers, spoilt, self.table, heads, self.length, tiles, strips, strip, *rest,
            *vector.stride()[:2],
        )  # fmt: skip
        constants = (*(() if group is None else (group,)), WIDTH, self.causal, *reach)
        for mend in (False, True):
            self.plan.launch_tma(kernel, heads * self.batch * strips, arguments, (*constants, mend, WARPS))


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
    for behind in (1, 2):  # both ways, two tiles behind and two ahead would leave one CTA on an SM
        count = sum(tiles_behind(w) <= behind for w in windows) if behind == 1 or causal else first
        if count > first:
            part = table[first:count]
            parts.append((part, BandHeads(plan, tensors, part, behind, causal)))
            first = count
    return parts if first == len(windows) else [*parts, (table[first:], None)]
