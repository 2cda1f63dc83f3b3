"""One call: its tensors as TMA sees them, sizes, options, and how it is split over CTAs."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cosformer.ops.gpu.carried_state import State
from cosformer.ops.gpu.partition import Splits, sm_count, split_documents, split_rows
from cosformer.ops.hopper.launch_plan import HopperLaunchPlan, tma_can_read, tma_descriptor
from cosformer.ops.hopper.partition import (
    CHUNK,
    apply_split_size,
    chunk_split_size,
    head_width,
    inline_split_size,
    state_split_size,
    sums_states_inline,
    tile_list_splits,
)
from cosformer.ops.hopper.tile_list_launch import make_tile_list


class Call:
    def __init__(
        self, plan: HopperLaunchPlan, tensors: dict[str, Tensor], den: Tensor, key_mask: Tensor | None,
        cu_seqlens: Tensor | None, positions: Tensor | None, offset: int, horizon: float, eps: float,
        causal: bool, use_tile_list: bool, tile_list: Tensor | None = None,
    ):  # fmt: skip
        """`tensors`: q, k, v, o, and for a backward g, dq, dk, dv; `den` [B, H, Tq]. `use_tile_list`: packed
        documents are one list of tiles (tile_list.py), otherwise each is a row of its own. `tile_list`: the
        list, if a forward kept it."""
        self.plan = plan
        self.tensors = {
            n: x if tma_can_read(x) else x.clone(memory_format=torch.contiguous_format)
            for n, x in tensors.items()
        }
        q, k, v = tensors["q"], tensors["k"], tensors["v"]
        self.key_mask = None if key_mask is None else key_mask.contiguous().view(torch.uint8)
        self.mask_stride = 0 if self.key_mask is None else self.key_mask.stride(0)
        self.cu_seqlens, self.positions = cu_seqlens, positions
        self.documents = 0 if cu_seqlens is None else cu_seqlens.shape[0] - 1
        self.device, self.heads, self.key_heads = q.device, q.shape[2], k.shape[2]
        self.group = self.heads // self.key_heads
        self.dims = (k.shape[3], v.shape[3])
        self.width = head_width(*self.dims)
        self.rows = q.shape[0] if cu_seqlens is None or use_tile_list else self.documents
        self.tq, self.tk = q.shape[1], k.shape[1]
        # Without a state the origin is free: the earliest position keeps every angle in [0, pi/2].
        self.origin_k = max(0, -offset) if positions is None else 0
        self.origin_q = self.origin_k + offset
        self.angle_step, self.eps = math.pi / 2 / horizon, eps
        self.den = self.inv_den = self.delta = den
        self.is_varlen, self.has_mask = cu_seqlens is not None, key_mask is not None
        self.has_positions = positions is not None
        self.causal, self.use_tile_list = causal, use_tile_list
        self.list_splits, self.kept_list = 0, tile_list
        # Groups of documents of one tile, and the bounds of each token's document.
        self.short_documents: tuple[Tensor, Tensor] | None = None
        if cu_seqlens is not None and use_tile_list:
            self.list_splits = tile_list_splits(self.tq, self._max_list_splits)
            if tile_list is None:
                group_short = not causal and self.group == 1
                self.kept_list, self.short_documents = make_tile_list(
                    plan, cu_seqlens, self.tq, self.list_splits, group_short
                )
        self.tile_list = None if self.kept_list is None else self.kept_list.view(torch.int32)
        self.sizes = (self.heads, self.group, *self.dims, self.width)
        self.options = (self.is_varlen, use_tile_list, self.has_mask, self.has_positions)

    def chunk_splits(self, every_state: bool) -> Splits:
        return self._splits(chunk_split_size, self.heads, self.tq, every_state)

    def state_splits(self, heads: int, length: int) -> Splits:
        return self._splits(state_split_size, heads, length)

    def apply_splits(self, heads: int, length: int) -> Splits:
        return self._splits(apply_split_size, heads, length)

    def inline_splits(self, length: int) -> Splits:
        return self._splits(inline_split_size, 1, length)

    @property
    def sums_states_inline(self) -> bool:
        return sums_states_inline(self.rows * self.heads, max(self.tq, self.tk), self.device, self.width)

    def new_state(self, heads: int) -> State:
        """One for each row, S and z in two tensors."""
        shape = (self.rows, heads, 2, *self.dims)
        s, z = self.plan.empty(shape), self.plan.empty(shape[:-1])
        return State(s, z, s.stride(1), z.stride(1))

    def _splits(
        self, split_size: Callable[..., int], heads: int, length: int, every_state: bool = True
    ) -> Splits:
        if self.use_tile_list:
            # Causal, one state for each split; bidirectional, for both documents that a split may cut.
            count = self.list_splits if self.causal else 2 * self.list_splits
            return Splits(0, self.list_splits, count, count)
        rows = self.rows if self.cu_seqlens is None else 1
        size = split_size(rows * heads, length, self.device, self.width)
        if self.cu_seqlens is None:
            return split_rows(rows, length, size)
        return split_documents(self.cu_seqlens, length, size, every_state)

    @property
    def _max_list_splits(self) -> int:
        """The most splits of a tile list for which all CTAs of a kernel are resident at once."""
        ctas_per_sm = 1 if self.width == 128 else 3 if not self.causal and "g" not in self.tensors else 2
        return max(1, ctas_per_sm * sm_count(self.device) // (self.heads if self.causal else self.key_heads))

    def _persistent_ctas(self, ctas_per_sm: int) -> tuple[int, int]:
        """CTAs of a kernel whose CTAs loop over tiles of one head: all that are resident (`ctas_per_sm`, half
        of it where W = 128), and for the rerun, which rarely has anything to do, one a head."""
        resident = ctas_per_sm * 64 // self.width * sm_count(self.device)
        return self.heads * max(1, resident // self.heads), self.heads

    def _packed(self, states: Tensor) -> State:
        return State.from_packed(states, self.dims[0])

    def _split_states(self, count: int, heads: int) -> Tensor:
        d, dv = self.dims
        return self.plan.empty((count, heads, 2 * d * (dv + 1)))

    def _tma(self, *names: str) -> list[Any]:
        return [tma_descriptor(self.tensors[n], CHUNK, self.width) for n in names]
