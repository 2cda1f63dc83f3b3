"""The kernels of one call as methods, which fill in tensors, strides, tables and block sizes."""

from typing import Any

import torch
from torch import Tensor

from cosformer.ops.gpu.blocks import (
    INTERPRETED,
    BlockConfig,
    dot_precision,
    has_large_smem,
    power_of_two,
)
from cosformer.ops.gpu.carried_state import NO_STATE, State
from cosformer.ops.gpu.launch_plan import LaunchPlan
from cosformer.ops.gpu.padding import with_aligned_rows
from cosformer.ops.gpu.partition import Splits, sm_count, split_documents, split_rows, state_subdivision
from cosformer.ops.gpu.roles import ROLES
from cosformer.ops.gpu.state_scan import launch_state_scan
from cosformer.ops.triton.bwd_preprocess import bwd_preprocess
from cosformer.ops.triton.chunk import chunk_attention
from cosformer.ops.triton.chunk_denominator import chunk_denominator
from cosformer.ops.triton.chunk_state import chunk_state
from cosformer.ops.triton.configs import block_config
from cosformer.ops.triton.decode import recurrent_step
from cosformer.ops.triton.partition import APPLY_CTAS, CHUNK_CTAS, STATE_CTAS, split_size
from cosformer.ops.triton.state_apply import state_apply

MAX_FUSED_FEATURES = 64  # with more, chunk_attention leaves the denominators to chunk_denominator


QUERY_SIDE = ("o", "dq")  # outputs with a row for each query
TRANSPOSED = ("dq", "dk")  # outputs that use the state transposed


class Kernels:
    def __init__(
        self, plan: LaunchPlan, tensors: dict[str, Tensor], den: Tensor, key_mask: Tensor | None,
        cu_seqlens: Tensor | None, positions: Tensor | None, offset: int, horizon: float, eps: float,
    ):  # fmt: skip
        """`tensors` by the names in ROLES; `den` [B, H, Tq]."""
        self.plan = plan
        self.tensors = {n: with_aligned_rows(x) for n, x in tensors.items()}
        q, k, v = tensors["q"], tensors["k"], tensors["v"]
        self.key_mask = None
        if key_mask is not None:
            self.key_mask = key_mask.contiguous().view(torch.uint8)
        self.mask_stride = 0 if self.key_mask is None else self.key_mask.stride(0)
        self.cu_seqlens, self.positions = cu_seqlens, positions
        self.device, self.heads, self.key_heads = q.device, q.shape[2], k.shape[2]
        self.dims = (k.shape[3], v.shape[3])
        self.rows = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        # Without a state the origin is free: the earliest position keeps every angle in [0, pi/2].
        self.origin_k = max(0, -offset) if positions is None else 0
        self.origin_q = self.origin_k + offset
        self.horizon, self.eps = float(horizon), eps
        self.den = den
        self.inv_den: Tensor = den
        self.delta: Tensor = den
        if "g" in tensors:
            self.inv_den, self.delta = plan.empty(tuple(den.shape)), plan.empty(tuple(den.shape))
        self.dot_precision, self.large_smem = dot_precision(q.dtype, INTERPRETED), has_large_smem(q.device)
        self.common: dict[str, Any] = {
            "D": self.dims[0], "DV": self.dims[1], "IS_VARLEN": cu_seqlens is not None,
            "HAS_MASK": key_mask is not None, "HAS_POSITIONS": positions is not None,
            "DOT": self.dot_precision.dtype, "PRECISION": self.dot_precision.precision,
        }  # fmt: skip

    def new_state(self) -> State:
        """One for each row and key head, S and z in two tensors."""
        shape = (self.rows, self.key_heads, 2, *self.dims)
        s, z = (self.plan.empty(n) for n in (shape, shape[:-1]))
        return State(s, z, s.stride(1), z.stride(1))

    def new_split_states(self, count: int) -> Tensor:
        """One for each split and key head, S followed by z."""
        d, dv = self.dims
        return self.plan.empty((count, self.key_heads, 2 * d * (dv + 1)))

    def splits(
        self, t: slice, ctas_per_split: int | None = None, ctas_per_sm: int = CHUNK_CTAS,
        every_state: bool = True,
    ) -> Splits:  # fmt: skip
        """`ctas_per_split`: as many as there are query heads if None."""
        rows, length = self.rows if self.cu_seqlens is None else 1, t.stop - t.start
        size = split_size(rows, length, ctas_per_split or self.heads, ctas_per_sm, self.device)
        if self.cu_seqlens is None:
            return split_rows(rows, length, size)
        return split_documents(self.cu_seqlens, length, size, every_state)

    def sum_states(self, output: str, t: slice, initial_state: State | None) -> State | None:
        """The state after the tokens `t`, for "o" or "dv"."""
        if t.stop <= t.start:
            return initial_state
        splits = self.splits(t, self.key_heads)
        many = output == "o" and self.key_heads * splits.count >= APPLY_CTAS * sm_count(self.device)
        config = self._config("chunk_state", "many states" if many else output, self.dims[0])
        states = self._chunk_state(output, t, splits, config)
        if splits.one_per_row and initial_state is None:
            return self.from_packed(states)
        if initial_state is None:  # in one tensor, as it is kept for a backward
            final_state = self.from_packed(self.new_split_states(self.rows))
        else:
            final_state = self.new_state()
        launch_state_scan(self.plan, states, splits, initial_state, final_state, self.rows, self.dims)
        return final_state

    def split_states(
        self, output: str, t: slice, initial_state: State | None, splits: Splits, need_final: bool
    ) -> tuple[State, State | None]:
        """The state each split starts from and, if needed, the state after the last."""
        unused = "none" if need_final else "first" if output == "dv" else "last"
        factor = state_subdivision(splits, self.key_heads, STATE_CTAS * sm_count(self.device))
        smaller = splits.subdivided(factor)
        config = self._config("chunk_state", output, self.dims[0])
        states = self._chunk_state(output, t, smaller, config, unused, 0 if need_final else factor)
        prefixes = states if factor == 1 else self.new_split_states(splits.slots)
        final_state = self.new_state() if need_final else None
        launch_state_scan(
            self.plan, states, smaller, initial_state, final_state, self.rows, self.dims, prefixes=prefixes,
            reverse=output == "dv", subdivision=factor,
        )  # fmt: skip
        return self.from_packed(prefixes), final_state

    def chunk_attention(
        self, output: str, queries: slice, keys: slice, splits: Splits, split_state: State | None,
        final_state: State | None,
    ) -> None:  # fmt: skip
        """`split_state`: what each split starts from."""
        role, (features, columns) = ROLES[output], self._features_and_columns(output)
        heads, of_a, of_b = (
            (self.heads, queries, keys) if output in QUERY_SIDE else (self.key_heads, keys, queries)
        )
        a, y, x = (self._tokens(n, of_a) for n in (role.a, role.y, role.x))
        b, c = self._tokens(role.b, of_b), self._tokens(role.c, of_b)
        options = self._config("chunk_attention", output, features).options(features, columns)
        fused = power_of_two(self.dims[0]) <= MAX_FUSED_FEATURES
        if output == "o" and not fused:
            self._chunk_denominator(queries, keys, splits, split_state, final_state)
        h0, ht = split_state or NO_STATE, final_state or NO_STATE
        self.plan.launch(
            chunk_attention, -(-columns // options["BV"]) * heads * splits.count,
            a, b, c, y, x, *self._vectors(queries), self._key_mask(keys), self.positions,
            *h0[:2], *ht[:2], *splits.tables,
            self._origin(output in QUERY_SIDE) + of_a.start, of_a.stop - of_a.start, splits.per_row,
            splits.size, self.horizon, self.eps, *_strides(a, b, c, y, x), *self.den.stride()[:2],
            self.mask_stride, *h0[2:], *ht[2:], HEADS=heads,
            GROUP=self.heads // self.key_heads, OUTPUT=output, USE_INITIAL_STATE=split_state is not None,
            STORE_FINAL_STATE=final_state is not None, WITH_DENOMINATOR=fused and output == "o", **options,
            **self.common,
        )  # fmt: skip

    def _chunk_denominator(
        self, queries: slice, keys: slice, splits: Splits, split_state: State | None,
        final_state: State | None,
    ) -> None:  # fmt: skip
        q, k, d = self._tokens("q", queries), self._tokens("k", keys), self.dims[0]
        options = self._config("chunk_denominator", "o", d).options(d, d)
        common = {n: x for n, x in self.common.items() if n != "DV"}
        options = {n: x for n, x in options.items() if n != "BV"}
        _, z0, _, z0_stride = split_state or NO_STATE
        _, zt, _, zt_stride = final_state or NO_STATE
        self.plan.launch(
            chunk_denominator, self.heads * splits.count,
            q, k, self._vectors(queries)[0], self._key_mask(keys), self.positions, z0, zt, *splits.tables,
            self.origin_q + queries.start, queries.stop - queries.start, splits.per_row, splits.size,
            self.horizon, *_strides(q, k), *self.den.stride()[:2], self.mask_stride, z0_stride, zt_stride,
            HEADS=self.heads, GROUP=self.heads // self.key_heads, USE_INITIAL_STATE=split_state is not None,
            STORE_FINAL_STATE=final_state is not None, **options, **common,
        )  # fmt: skip

    def bwd_preprocess(self) -> None:
        """inv_den and delta of all queries."""
        g, o = self.tensors["g"], self.tensors["out"]
        batch, length, heads, width = o.shape
        if batch * length == 0:
            return
        bt = max(16, 2**12 // power_of_two(width))
        self.plan.launch(
            bwd_preprocess, heads * batch * -(-length // bt),
            g, o, self.den, self.inv_den, self.delta, length, self.eps, *_strides(g, o),
            *self.den.stride()[:2], HEADS=heads, DV=width, BT=bt, BV=power_of_two(width), num_warps=4,
        )  # fmt: skip

    def fuses_preprocess(self) -> bool:
        """Whether state_apply computes inv_den and delta beside "dq": only where one program has all
        columns."""
        features, columns = self._features_and_columns("dq")
        return columns <= self._config("state_apply", "dq", features).bv

    def state_apply(self, output: str, t: slice, state: State | None, preprocess: bool = False) -> None:
        """`preprocess`: "dq" computes inv_den and delta too."""
        if t.stop <= t.start:
            return
        role, (features, columns) = ROLES[output], self._features_and_columns(output)
        heads = self.heads if output in QUERY_SIDE else self.key_heads
        a, y, x = (self._tokens(n, t) for n in (role.a, role.y, role.x))
        o = self._tokens("out", t) if preprocess else None
        options = self._config("state_apply", output, features).options(features, columns)
        ctas_per_split = -(-columns // options["BV"]) * heads
        splits = self.splits(t, ctas_per_split, APPLY_CTAS)
        h0 = state or NO_STATE
        self.plan.launch(
            state_apply, ctas_per_split * splits.count,
            a, o, y, x, *self._vectors(t if output in QUERY_SIDE else None), self._key_mask(t),
            self.positions, *h0[:2], *splits.tables, self._origin(output in QUERY_SIDE) + t.start,
            t.stop - t.start, splits.per_row, splits.size, self.horizon, self.eps, *_strides(a, o, y, x),
            *self.den.stride()[:2], self.mask_stride, *h0[2:], HEADS=heads, GROUP=heads // self.key_heads,
            OUTPUT=output, USE_INITIAL_STATE=state is not None, **options, **self.common,
        )  # fmt: skip

    def recurrent_step(self, initial_state: State, final_state: State) -> None:
        """One token a row; both states may be the same tensors."""
        q, k, v, out = (self.tensors[n] for n in ("q", "k", "v", "out"))
        d, dv = self.dims
        bv = min(power_of_two(dv), 2**12 // power_of_two(d))
        self.plan.launch(
            recurrent_step, self.key_heads * self.rows,
            q, k, v, out, self.den, self.key_mask, self.positions, *initial_state[:2], *final_state[:2],
            self.origin_q, self.horizon, self.eps, q.stride(0), q.stride(2), k.stride(0), k.stride(2),
            v.stride(0), v.stride(2), out.stride(0), out.stride(2), self.mask_stride, *initial_state[2:],
            *final_state[2:],
            HEADS=self.key_heads, GROUP=self.heads // self.key_heads, D=d, DV=dv,
            HAS_MASK=self.key_mask is not None, BK=power_of_two(d), BV=bv, num_warps=4,
        )  # fmt: skip

    def _chunk_state(
        self, output: str, t: slice, splits: Splits, config: BlockConfig, unused: str = "none",
        unused_splits: int = 0,
    ) -> Tensor:  # fmt: skip
        """[slots, Hk, 2 D (Dv + 1)]: S, then z, of each split. The states of `unused_splits` splits of each
        row, its "first" or "last", are not written."""
        d, dv = self.dims
        states = self.new_split_states(splits.slots)
        b = self._tokens("k" if output == "o" else "q", t)
        c = self._tokens("v" if output == "o" else "g", t)
        options = config.options(d, dv)
        count = splits.count if self.cu_seqlens is not None else splits.count - unused_splits * self.rows
        self.plan.launch(
            chunk_state, -(-dv // options["BV"]) * self.key_heads * count,
            b, c, *self._vectors(t)[1:], self._key_mask(t), self.positions, states, *splits.tables,
            self._origin(output == "dv") + t.start, t.stop - t.start, splits.per_row, splits.size,
            unused_splits, self.horizon, *_strides(b, c), *self.den.stride()[:2], self.mask_stride,
            HEADS=self.key_heads, GROUP=self.heads // self.key_heads if output == "dv" else 1, OUTPUT=output,
            UNUSED_SPLITS=unused, **options, **self.common,
        )  # fmt: skip
        return states

    def from_packed(self, states: Tensor) -> State:
        return State.from_packed(states, self.dims[0])

    def _config(self, kernel: str, variant: str, features: int) -> BlockConfig:
        return block_config(kernel, variant, self.dot_precision.bytes, features, self.large_smem)

    def _features_and_columns(self, output: str) -> tuple[int, int]:
        return (self.dims[1], self.dims[0]) if output in TRANSPOSED else self.dims

    def _origin(self, of_queries: bool) -> int:
        return self.origin_q if of_queries else self.origin_k

    def _tokens(self, name: str | None, t: slice) -> Tensor | None:
        if name is None:
            return None
        x = self.tensors[name]
        return x if t == slice(0, x.shape[1]) else x[:, t]

    def _vectors(self, t: slice | None) -> tuple[Tensor, Tensor, Tensor]:
        """den, inv_den and delta of these queries; None where the kernel does not read them."""
        if t is None:
            return self.den, self.inv_den, self.delta
        return self.den[..., t], self.inv_den[..., t], self.delta[..., t]

    def _key_mask(self, t: slice) -> Tensor | None:
        return None if self.key_mask is None else self.key_mask[:, t]


def _strides(*tensors: Tensor | None) -> list[int]:
    return [n for x in tensors for n in ((0, 0, 0) if x is None else x.stride()[:3])]
