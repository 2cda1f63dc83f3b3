"""The kernels of one call as methods, which fill in their arguments."""

from typing import Any

from torch import Tensor

from cosformer.ops.gpu.carried_state import NO_STATE, State
from cosformer.ops.gpu.partition import Splits, sm_count, state_subdivision
from cosformer.ops.gpu.state_scan import launch_state_scan
from cosformer.ops.hopper.call import Call
from cosformer.ops.hopper.chunk_bwd_dkv import chunk_bwd_dkv
from cosformer.ops.hopper.chunk_bwd_dq import chunk_bwd_dq
from cosformer.ops.hopper.chunk_fwd import chunk_fwd
from cosformer.ops.hopper.chunk_state import chunk_state
from cosformer.ops.hopper.head_group_sum import BLOCK, sum_head_groups
from cosformer.ops.hopper.partition import STATE_CTAS
from cosformer.ops.hopper.state_apply import state_apply_o
from cosformer.ops.hopper.state_apply_bwd import state_apply_dkv, state_apply_dq
from cosformer.ops.hopper.tile_list import tile_list_state_scan, tile_list_state_sum
from cosformer.ops.hopper.tile_list_launch import launch_over_splits
from cosformer.ops.hopper.varlen_bidir_bwd import varlen_bidir_bwd
from cosformer.ops.hopper.varlen_bidir_fwd import varlen_bidir_fwd
from cosformer.ops.hopper.varlen_single_tile_bwd import varlen_single_tile_bwd
from cosformer.ops.hopper.varlen_single_tile_fwd import varlen_single_tile_fwd

# (pipeline stages, warps) by kernel and width: the fastest of what fits into shared memory.
SIZES = {
    "chunk_fwd": {64: (2, 4), 128: (2, 8)},
    "chunk_bwd_dq": {64: (2, 4), 128: (1, 8)},
    "chunk_bwd_dkv": {64: (2, 4), 128: (2, 8)},
    "chunk_state": {64: (2, 4), 128: (4, 8)},
    "state_apply_o": {64: (2, 4), 128: (2, 4)},
    "state_apply_dq": {64: (2, 4), 128: (2, 8)},
    "state_apply_dkv": {64: (2, 4), 128: (2, 8)},
    "varlen_bidir_fwd": {64: (2, 4), 128: (2, 8)},
    "varlen_bidir_bwd": {64: (3, 4), 128: (2, 8)},
    "varlen_single_tile_fwd": {64: (2, 4), 128: (2, 4)},
    "varlen_single_tile_bwd": {64: (2, 4), 128: (2, 8)},
}


class Kernels(Call):
    def chunk_fwd(
        self, splits: Splits, split_states: State | None, final_state: State | None, states_per_split: int = 0
    ) -> None:
        """`split_states`: what each split starts from. With `states_per_split`, what each split adds, in so
        many states; the kernel sums those before its split."""
        h0, ht = split_states or NO_STATE, final_state or NO_STATE
        self._launch(
            chunk_fwd, self.heads * splits.count,
            (
                *self._tma("q", "k", "v", "o"), self.tensors["o"], self.den, self.key_mask, self.positions,
                *h0[:2], *ht[:2], *splits.tables, self.tile_list, self.origin_q, self.tq, splits.per_row,
                splits.size, self.angle_step, self.eps, self.tq, self.mask_stride, *h0[2:], *ht[2:],
                states_per_split,
            ),
            (
                *self.sizes, *self.options, split_states is not None, states_per_split > 0,
                final_state is not None,
            ),
        )  # fmt: skip

    def chunk_bwd_dq(self, splits: Splits, split_states: State | None) -> None:
        """Also computes inv_den and delta."""
        self.inv_den, self.delta = (self.plan.empty(tuple(self.den.shape)) for _ in range(2))
        h0 = split_states or NO_STATE
        self._launch(
            chunk_bwd_dq, self.heads * splits.count,
            (
                *self._tma("q", "k", "v", "o", "g", "dq"), self.tensors["dq"], self.den, self.inv_den,
                self.delta, self.key_mask, self.positions, *h0[:2], *splits.tables, self.tile_list,
                self.origin_q, self.tq, splits.per_row, splits.size, self.angle_step, self.eps, self.tq,
                self.mask_stride, *h0[2:],
            ),
            (*self.sizes, *self.options, split_states is not None),
        )  # fmt: skip

    def chunk_bwd_dkv(self, splits: Splits, split_states: State | None, final_state: State | None) -> None:
        """The states are gradients of states, one for each query head."""
        h0, ht = split_states or NO_STATE, final_state or NO_STATE
        self._launch(
            chunk_bwd_dkv, self.heads * splits.count,
            (
                *self._tma("q", "k", "v", "g", "dk", "dv"), self.tensors["dk"], self.tensors["dv"],
                self.inv_den, self.delta, self.key_mask, self.positions, *h0[:2], *ht[:2], *splits.tables,
                self.tile_list, self.origin_q, self.tq, splits.per_row, splits.size, self.angle_step, self.tq,
                self.mask_stride, *h0[2:], *ht[2:],
            ),
            (*self.sizes, *self.options, split_states is not None, final_state is not None),
        )  # fmt: skip

    def chunk_state(self, output: str, splits: Splits, unused: int = 0) -> Tensor:
        """[slots, heads, 2 D (Dv + 1)]: S, then z, of each split, for key heads ("o") or query heads ("dv").
        `unused` splits of each row, its last ("o") or first ones, are left out."""
        heads, origin, length = (
            (self.key_heads, self.origin_k, self.tk)
            if output == "o"
            else (self.heads, self.origin_q, self.tq)
        )
        states = self._split_states(splits.slots, heads)
        self._launch(
            chunk_state, heads * (splits.count - unused * self.rows),
            (
                *(self._tma("k", "v") if output == "o" else self._tma("q", "g")), self.inv_den, self.delta,
                self.key_mask, self.positions, states, *splits.tables, self.tile_list, origin, length,
                splits.per_row, splits.size, unused, unused if output == "dv" else 0, self.angle_step, length,
                self.mask_stride,
            ),
            (
                heads, *self.dims, self.width, output, self.is_varlen, self.use_tile_list, self.causal,
                self.has_mask, self.has_positions,
            ),
        )  # fmt: skip
        return states

    def state_apply_o(self, splits: Splits, state: State, states_per_row: int = 0) -> None:
        """`states_per_row`: the number of states in each row of `state`; the kernel applies their sum."""
        self._launch(
            state_apply_o, self.heads * splits.count,
            (
                *self._tma("q", "o"), self.tensors["o"], self.den, self.positions, *state[:2], *splits.tables,
                self.tile_list, self.origin_q, self.tq, splits.per_row, splits.size, self.angle_step,
                self.eps, self.tq, *state[2:], states_per_row,
            ),
            (*self.sizes, self.is_varlen, self.use_tile_list, self.has_positions, states_per_row > 0),
        )  # fmt: skip

    def state_apply_dq(self, splits: Splits, state: State) -> Tensor:
        """Also returns the gradient of the state by split, [slots, key heads, 2 D (Dv + 1)]."""
        states = self._split_states(splits.slots, self.group * self.key_heads)
        self._launch(
            state_apply_dq, self.heads * splits.count,
            (
                *self._tma("q", "o", "g", "dq"), self.tensors["dq"], self.den, self.positions, *state[:2],
                states, *splits.tables, self.tile_list, self.origin_q, self.tq, splits.per_row, splits.size,
                self.angle_step, self.eps, self.tq, *state[2:],
            ),
            (*self.sizes, self.is_varlen, self.use_tile_list, self.has_positions),
        )  # fmt: skip
        if self.group == 1:
            return states
        shape = (splits.slots, self.key_heads, states.shape[2])
        return self.sum_head_groups(states, shape, self.key_heads * states.shape[2])

    def state_apply_dkv(self, splits: Splits, state: State) -> None:
        self._launch(
            state_apply_dkv, self.key_heads * splits.count,
            (
                *self._tma("k", "v", "dk", "dv"), self.tensors["dk"], self.tensors["dv"], self.key_mask,
                self.positions, *state[:2], *splits.tables, self.tile_list, self.origin_k, self.tk,
                splits.per_row, splits.size, self.angle_step, self.mask_stride, *state[2:],
            ),
            (self.key_heads, *self.dims, self.width, *self.options),
        )  # fmt: skip

    def varlen_bidir_fwd(self) -> None:
        """Documents that no split boundary cuts; short ones in groups, if they are not in the list."""
        self._launch(
            varlen_bidir_fwd, self.key_heads * self.list_splits,
            (
                *self._tma("q", "k", "v", "o"), self.tensors["o"], self.den, self.tile_list, self.list_splits,
                self.angle_step, self.eps, self.tq,
            ),
            (self.heads, self.group, self.dims[1], self.width),
        )  # fmt: skip
        if self.short_documents is None:
            return
        for rerun, programs in enumerate(self._persistent_ctas(4)):
            self._launch(
                varlen_single_tile_fwd, programs,
                (
                    *self._tma("q", "k", "v"), self.tensors["o"], self.den, *self.short_documents,
                    self.documents, rerun, self.angle_step, self.eps, self.tq,
                ),
                (self.heads, self.dims[1], self.width),
            )  # fmt: skip

    def varlen_bidir_bwd(self) -> None:
        grads = (self.tensors["dq"], self.tensors["dk"], self.tensors["dv"])
        self._launch(
            varlen_bidir_bwd, self.key_heads * self.list_splits,
            (
                *self._tma("q", "k", "v", "o", "g", "dq", "dk", "dv"), *grads, self.den, self.tile_list,
                self.list_splits, self.angle_step, self.eps, self.tq,
            ),
            self.sizes,
        )  # fmt: skip
        if self.short_documents is None:
            return
        for rerun, programs in enumerate(self._persistent_ctas(2)):
            self._launch(
                varlen_single_tile_bwd, programs,
                (
                    *self._tma("q", "k", "v", "o", "g"), *grads, self.den, *self.short_documents,
                    self.documents, rerun, self.angle_step, self.eps, self.tq,
                ),
                (self.heads, *self.dims, self.width),
            )  # fmt: skip

    def sum_head_groups(self, parts: Tensor, shape: tuple[int, ...], width: int) -> Tensor:
        """The sum over the query heads of each key head; `width` numbers a head."""
        sums = self.plan.empty(shape, parts.dtype)
        self.plan.launch(
            sum_head_groups, -(-sums.numel() // BLOCK), parts, sums, sums.numel(), GROUP=self.group,
            WIDTH=width, BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
        return sums

    def split_states(
        self, output: str, splits: Splits, initial_state: State | None, *, need_final: bool
    ) -> tuple[State, State | None]:
        """The state each split starts from and, if needed, the state after the last."""
        reverse = output == "dv"
        if self.use_tile_list:
            states = self.chunk_state(output, splits)
            self._launch_over_splits(tile_list_state_scan, states, REVERSE=reverse)
            return self._packed(states), None
        factor = self.state_subdivision(output, splits)
        smaller = splits.subdivided(factor)
        states = self.chunk_state(output, smaller, 0 if need_final or self.is_varlen else factor)
        heads = states.shape[1]
        prefixes = states if factor == 1 else self._split_states(splits.slots, heads)
        final_state = self._packed(self._split_states(self.rows, heads)) if need_final else None
        launch_state_scan(
            self.plan, states, smaller, initial_state, final_state, self.rows, self.dims, prefixes=prefixes,
            reverse=reverse, subdivision=factor,
        )  # fmt: skip
        return self._packed(prefixes), final_state

    def state_subdivision(self, output: str, splits: Splits) -> int:
        heads = self.key_heads if output == "o" else self.heads
        return state_subdivision(splits, heads, STATE_CTAS[self.width] * sm_count(self.device))

    def sum_states(self, states: Tensor, splits: Splits, initial_state: State | None) -> State:
        """The sum over all splits of each row, and of the initial state."""
        if self.use_tile_list:
            sums = self._split_states(self.list_splits, states.shape[1])
            self._launch_over_splits(tile_list_state_sum, states, sums)
            return self._packed(sums)
        if splits.one_per_row and initial_state is None:
            return self._packed(states)
        final_state = self._packed(self._split_states(self.rows, states.shape[1]))
        launch_state_scan(self.plan, states, splits, initial_state, final_state, self.rows, self.dims)
        return final_state

    def _launch(
        self, kernel: Any, programs: int, arguments: tuple[Any, ...], constants: tuple[Any, ...]
    ) -> None:
        self.plan.launch_tma(
            kernel, programs, arguments, (*constants, *SIZES[kernel.__name__][self.width])
        )  # fmt: skip

    def _launch_over_splits(self, kernel: Any, *states: Tensor, **options: Any) -> None:
        launch_over_splits(
            self.plan, kernel, states, self.tile_list, self.list_splits, self._max_list_splits, **options
        )
