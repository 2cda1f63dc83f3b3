"""Which kernels make up a forward and a backward.

Causal attention is one pass of chunk_attention; where rows are split, chunk_state and state_scan first
compute the state that each split starts from. Bidirectional and cross attention sum one state (chunk_state,
state_scan) and apply it (state_apply). Where causal queries and keys do not begin and end together, keys
before the first query only go into the state, queries after the last key only use it, and the range in
between is causal.

For the backward a forward saves the state of bidirectional attention, and the states of splits where the
whole call is one causal range. Other states are computed again.
"""

from functools import partial
from typing import NamedTuple

from torch import Tensor

from cosformer.ops.chunked.plan import overlap
from cosformer.ops.gpu.carried_state import NO_STATE, State
from cosformer.ops.gpu.launch_cache import cached_call, make_replay
from cosformer.ops.gpu.launch_plan import LaunchPlan
from cosformer.ops.triton.kernels import Kernels
from cosformer.ops.windowed import Triple


class Span(NamedTuple):
    """A range of queries and the range of keys at the same positions."""

    q: slice
    k: slice


def forward(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, cu_seqlens: Tensor | None,
    initial_state: State | None, positions: Tensor | None, into: Tensor | None, causal: bool, offset: int,
    horizon: float, eps: float, need_state: bool, keep: bool,
) -> tuple[Tensor, Tensor, State | None, Tensor | None]:  # fmt: skip
    """o [B, Tq, H, Dv], den [B, H, Tq] before eps, the state after the last key (always for bidirectional
    attention, for causal attention if needed), and, to `keep` for the backward, the states of splits. o is
    written `into` a tensor that is given."""
    inputs = (q, k, v, key_mask, cu_seqlens, *(initial_state or NO_STATE)[:2], positions, into)
    settings = (causal, offset, horizon, eps, need_state, keep)
    return cached_call(launch_forward, inputs, settings, replayable=cu_seqlens is None)


def launch_forward(
    plan: LaunchPlan, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, cu_seqlens: Tensor | None,
    s: Tensor | None, z: Tensor | None, positions: Tensor | None, into: Tensor | None, causal: bool,
    offset: int, horizon: float, eps: float, need_state: bool, keep: bool,
) -> tuple[Tensor, Tensor, State | None, Tensor | None]:  # fmt: skip
    initial_state = State.given(s, z)
    batch, length, heads, _ = q.shape
    out = plan.empty((batch, length, heads, v.shape[3]), q.dtype) if into is None else into
    den = plan.empty((batch, heads, length))
    tensors = {"q": q, "k": k, "v": v, "out": out}
    run = Kernels(plan, tensors, den, key_mask, cu_seqlens, positions, offset, horizon, eps)
    if not causal:
        state = run.sum_states("o", slice(0, k.shape[1]), initial_state)
        run.state_apply("o", slice(0, q.shape[1]), state)
        return out, den, state, None
    one_token = q.shape[1] == k.shape[1] == 1 and offset == 0 and cu_seqlens is None
    if one_token and initial_state is not None and need_state:
        state = run.new_state()
        run.recurrent_step(initial_state, state)
        return out, den, state, None
    early, both, late = _spans(q.shape[1], k.shape[1], offset)
    run.state_apply("o", early.q, initial_state)
    state = run.sum_states("o", early.k, initial_state)
    need_final = need_state or late.q.stop > late.q.start
    kept = None
    if both.q.stop > both.q.start:
        state, split_states = _causal_forward(run, both, state, need_final)
        if keep and split_states is not None and _is_one_causal_range(q, k, offset, cu_seqlens):
            kept = split_states.s
    run.state_apply("o", late.q, state)
    if need_state:
        state = run.sum_states("o", late.k, state)
    return out, den, state, kept


replay = partial(make_replay, launch_forward, (False, False))


def backward(
    grad: Tensor, grad_state: State | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, den: Tensor,
    kept: Tensor | None, key_mask: Tensor | None, cu_seqlens: Tensor | None, initial_state: State | None,
    positions: Tensor | None, into: Triple | None, causal: bool, offset: int, horizon: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor, State | None]:  # fmt: skip
    """dq, dk, dv, written `into` tensors that are given, and the gradient of the initial state. `kept`: the
    state of bidirectional attention, or the states of splits, S followed by z; None: they are computed
    again."""
    inputs = (
        grad, *(grad_state or NO_STATE)[:2], q, k, v, out, den, kept, key_mask, cu_seqlens,
        *(initial_state or NO_STATE)[:2], positions, *(into or (None, None, None)),
    )  # fmt: skip
    return cached_call(launch_backward, inputs, (causal, offset, horizon, eps), replayable=cu_seqlens is None)


def launch_backward(
    plan: LaunchPlan, grad: Tensor, gs: Tensor | None, gz: Tensor | None, q: Tensor, k: Tensor, v: Tensor,
    out: Tensor, den: Tensor, kept: Tensor | None, key_mask: Tensor | None, cu_seqlens: Tensor | None,
    s: Tensor | None, z: Tensor | None, positions: Tensor | None, dq: Tensor | None, dk: Tensor | None,
    dv: Tensor | None, causal: bool, offset: int, horizon: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor, State | None]:  # fmt: skip
    initial_state, grad_state = State.given(s, z), State.given(gs, gz)
    if dq is None or dk is None or dv is None:
        dq, dk, dv = (plan.empty(tuple(x.shape), x.dtype) for x in (q, k, v))
    tensors = {"q": q, "k": k, "v": v, "out": out, "g": grad, "dq": dq, "dk": dk, "dv": dv}
    run = Kernels(plan, tensors, den, key_mask, cu_seqlens, positions, offset, horizon, eps)
    if not causal:
        queries, keys = slice(0, q.shape[1]), slice(0, k.shape[1])
        state = run.sum_states("o", keys, initial_state) if kept is None else run.from_packed(kept)
        fused = run.fuses_preprocess()
        if not fused:
            run.bwd_preprocess()
        run.state_apply("dq", queries, state, fused)
        grad_state = run.sum_states("dv", queries, grad_state)
        run.state_apply("dk", keys, grad_state)
        run.state_apply("dv", keys, grad_state)
        return dq, dk, dv, grad_state
    run.bwd_preprocess()
    early, both, late = _spans(q.shape[1], k.shape[1], offset)
    before_both = run.sum_states("o", early.k, initial_state)
    if late.q.stop > late.q.start:
        run.state_apply("dq", late.q, run.sum_states("o", both.k, before_both))
        grad_state = run.sum_states("dv", late.q, grad_state)
    run.state_apply("dk", late.k, grad_state)
    run.state_apply("dv", late.k, grad_state)
    if both.q.stop > both.q.start:
        need_grad_state = initial_state is not None or early.k.stop > early.k.start
        split_states = None if kept is None else run.from_packed(kept)
        grad_state = _causal_backward(run, both, before_both, grad_state, need_grad_state, split_states)
    run.state_apply("dk", early.k, grad_state)
    run.state_apply("dv", early.k, grad_state)
    run.state_apply("dq", early.q, initial_state)
    if initial_state is not None:
        grad_state = run.sum_states("dv", early.q, grad_state)
    return dq, dk, dv, grad_state


def step(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, state: State, positions: Tensor, horizon: float,
    eps: float,
) -> Tensor:  # fmt: skip
    """One token a row; the state is updated in place. Returns o."""
    inputs = (q, k, v, key_mask, state.s, state.z, positions)
    (out,) = cached_call(_step, inputs, (horizon, eps), replayable=True)
    return out


def _step(
    plan: LaunchPlan, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, s: Tensor, z: Tensor,
    positions: Tensor, horizon: float, eps: float,
) -> tuple[Tensor]:  # fmt: skip
    batch, length, heads, _ = q.shape
    out = plan.empty((batch, length, heads, v.shape[3]), q.dtype)
    den = plan.empty((batch, heads, length))
    state = State.of(s, z)
    tensors = {"q": q, "k": k, "v": v, "out": out}
    run = Kernels(plan, tensors, den, key_mask, None, positions, 0, horizon, eps)
    run.recurrent_step(state, state)
    return (out,)


def _spans(tq: int, tk: int, offset: int) -> tuple[Span, Span, Span]:
    """Before the positions that have both queries and keys, these positions, and after them."""
    q0, k0, n = overlap(tq, tk, offset)
    q1, k1 = q0 + n, k0 + n
    return (
        Span(slice(0, q0), slice(0, k0)),
        Span(slice(q0, q1), slice(k0, k1)),
        Span(slice(q1, tq), slice(k1, tk)),
    )


def _is_one_causal_range(q: Tensor, k: Tensor, offset: int, cu_seqlens: Tensor | None) -> bool:
    """Whether queries and keys have the same positions, and the number of splits is known."""
    return q.shape[1] == k.shape[1] and offset == 0 and cu_seqlens is None


def _causal_forward(
    run: Kernels, span: Span, initial_state: State | None, need_final: bool
) -> tuple[State | None, State | None]:
    """The state after the span, if needed, and those its splits start from, if there are several."""
    splits = run.splits(span.q, every_state=need_final or initial_state is not None)
    final_state: State | None = None
    if splits.one_per_row:
        final_state = run.new_state() if need_final else None
        run.chunk_attention("o", *span, splits, initial_state, final_state)
        return final_state, None
    split_states, final_state = run.split_states("o", span.k, initial_state, splits, need_final)
    run.chunk_attention("o", *span, splits, split_states, None)
    return final_state, split_states


def _causal_backward(
    run: Kernels, span: Span, initial_state: State | None, grad_final: State | None, need_grad_initial: bool,
    split_states: State | None,
) -> State | None:  # fmt: skip
    """`grad_final`: the gradient of the state after the span; returns that of the state before it, if needed.
    `split_states`: what splits start from, where a forward kept that."""
    splits = run.splits(span.q, every_state=grad_final is not None or initial_state is not None)
    grad_initial: State | None = None
    grad_splits: State | None = grad_final
    if splits.one_per_row:
        run.chunk_attention("dq", *span, splits, initial_state, None)
        grad_initial = run.new_state() if need_grad_initial else None
        run.chunk_attention("dk", *span, splits, grad_splits, grad_initial)
    else:
        if split_states is None:
            split_states, _ = run.split_states("o", span.k, initial_state, splits, need_final=False)
        run.chunk_attention("dq", *span, splits, split_states, None)
        grad_splits, grad_initial = run.split_states("dv", span.q, grad_final, splits, need_grad_initial)
        run.chunk_attention("dk", *span, splits, grad_splits, None)
    run.chunk_attention("dv", *span, splits, grad_splits, None)
    return grad_initial
