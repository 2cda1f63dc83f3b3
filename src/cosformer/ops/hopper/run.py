"""Which kernels make up a forward and a backward.

Causal attention is one pass of chunk_fwd; where rows are split, chunk_state and a scan first compute the
state that each split starts from. Bidirectional and cross attention sum one state and apply it. A forward
keeps these states for its backward, which computes them again where they were not kept (with packing). Packed
documents are one list of tiles (tile_list.py); where a state comes in or goes out, each document is a row of
its own.

A state is two tensors, S and z, or one that holds S followed by z, and None.
"""

from functools import partial

from torch import Tensor

from cosformer.ops.gpu.carried_state import State
from cosformer.ops.gpu.launch_cache import make_replay
from cosformer.ops.hopper.kernels import Kernels
from cosformer.ops.hopper.launch_plan import HopperLaunchPlan
from cosformer.ops.hopper.partition import MAX_INLINE_STATES


def forward(
    plan: HopperLaunchPlan, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None,
    cu_seqlens: Tensor | None, numerator: Tensor | None, denominator: Tensor | None,
    positions: Tensor | None, into: Tensor | None, causal: bool, offset: int, horizon: float, eps: float,
    need_state: bool, keep: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """o [B, Tq, H, Dv], den [B, H, Tq] before eps, what to `keep` for a backward, and the state after the
    last key if it is needed. o is written `into` a tensor that is given, where `writes_views`."""
    out = plan.empty((*q.shape[:-1], v.shape[-1]), q.dtype) if into is None else into
    den = plan.empty((q.shape[0], q.shape[2], q.shape[1]))
    tensors = {"q": q, "k": k, "v": v, "o": out}
    initial_state = State.given(numerator, denominator)
    has_states = need_state or initial_state is not None
    use_tile_list = uses_tile_list(cu_seqlens, has_states)
    run = Kernels(
        plan, tensors, den, key_mask, cu_seqlens, positions, offset, horizon, eps, causal, use_tile_list
    )
    # The states are not needed elsewhere: the kernels that use them may sum them, which saves a launch.
    may_sum_inline = not keep and not has_states and cu_seqlens is None
    if not causal and may_sum_inline and run.sums_states_inline:
        splits = run.inline_splits(k.shape[1])
        states = State.from_packed(run.chunk_state("o", splits), k.shape[3])
        run.state_apply_o(run.inline_splits(q.shape[1]), states, states_per_row=splits.per_row)
        return out, den, None, None, None
    if not causal:
        splits = run.state_splits(k.shape[2], k.shape[1])
        state = run.sum_states(run.chunk_state("o", splits), splits, initial_state)
        run.state_apply_o(run.apply_splits(q.shape[2], q.shape[1]), state)
        if use_tile_list:
            run.varlen_bidir_fwd()
        return out, den, state.s, state.s if need_state else None, None
    splits = run.chunk_splits(every_state=has_states)
    final_state: State | None
    if splits.one_per_row:
        final_state = run.new_state(k.shape[2]) if need_state else None
        run.chunk_fwd(splits, initial_state, final_state)
        return out, den, run.kept_list, *((None, None) if final_state is None else final_state[:2])
    factor = run.state_subdivision("o", splits)
    if may_sum_inline and splits.per_row * factor <= MAX_INLINE_STATES[run.width]:
        states = State.from_packed(run.chunk_state("o", splits.subdivided(factor), factor), k.shape[3])
        run.chunk_fwd(splits, states, None, states_per_split=factor)
        return out, den, None, None, None
    split_states, final_state = run.split_states("o", splits, initial_state, need_final=need_state)
    run.chunk_fwd(splits, split_states, None)
    kept = run.kept_list if use_tile_list else split_states.s
    return out, den, kept, None if final_state is None else final_state.s, None


replay = partial(make_replay, forward, (False, False))


def backward(
    plan: HopperLaunchPlan, grad: Tensor, grad_numerator: Tensor | None, grad_denominator: Tensor | None,
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, den: Tensor, kept: Tensor | None, key_mask: Tensor | None,
    cu_seqlens: Tensor | None, numerator: Tensor | None, denominator: Tensor | None, positions: Tensor | None,
    dq: Tensor | None, dk: Tensor | None, dv: Tensor | None, causal: bool, offset: int, horizon: float,
    eps: float,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """dq, dk, dv, and the gradient of the initial state. The first three are written into tensors that are
    given, where `writes_views`."""
    if dq is None or dk is None or dv is None:
        dq = plan.empty(tuple(q.shape), q.dtype)
        heads = q.shape[2] if causal else k.shape[2]
        dk, dv = (plan.empty((*x.shape[:2], heads, x.shape[3]), x.dtype) for x in (k, v))
    tensors = {"q": q, "k": k, "v": v, "o": out, "g": grad, "dq": dq, "dk": dk, "dv": dv}
    initial_state = State.given(numerator, denominator)
    grad_final = State.given(grad_numerator, grad_denominator)
    has_states = grad_final is not None or initial_state is not None
    use_tile_list = uses_tile_list(cu_seqlens, has_states)
    run = Kernels(
        plan, tensors, den, key_mask, cu_seqlens, positions, offset, horizon, eps, causal, use_tile_list,
        kept if causal and use_tile_list else None,
    )  # fmt: skip
    if not causal:
        if kept is None:
            splits = run.state_splits(k.shape[2], k.shape[1])
            state = run.sum_states(run.chunk_state("o", splits), splits, initial_state)
        else:
            state = State.from_packed(kept, k.shape[3])
        splits = run.state_splits(q.shape[2], q.shape[1])
        grad_state = run.sum_states(run.state_apply_dq(splits, state), splits, grad_final)
        run.state_apply_dkv(run.apply_splits(k.shape[2], k.shape[1]), grad_state)
        if use_tile_list:
            run.varlen_bidir_bwd()
        return dq, dk, dv, grad_state.s, None
    # Each query head has a gradient of the state of its own. The one that comes in is given to one of the
    # query heads that share a key head; the one that goes out is their sum.
    grad_final = None if grad_final is None else _to_first_query_head(grad_final, run)
    splits = run.chunk_splits(every_state=has_states)
    grad_initial: State | None
    if splits.one_per_row:
        run.chunk_bwd_dq(splits, initial_state)
        grad_initial = run.new_state(run.heads) if initial_state is not None else None
        run.chunk_bwd_dkv(splits, grad_final, grad_initial)
    else:
        if kept is None or use_tile_list:
            split_states, _ = run.split_states("o", splits, initial_state, need_final=False)
        else:
            split_states = State.from_packed(kept, k.shape[3])
        run.chunk_bwd_dq(splits, split_states)
        need_final = initial_state is not None
        split_states, grad_initial = run.split_states("dv", splits, grad_final, need_final=need_final)
        run.chunk_bwd_dkv(splits, split_states, None)
    if run.group > 1:
        dk, dv = (run.sum_head_groups(part, tuple(x.shape), x.shape[3]) for part, x in ((dk, k), (dv, v)))
        grad_initial = None if grad_initial is None else _sum_query_heads(grad_initial, run)
    if grad_initial is None:
        return dq, dk, dv, None, None
    return dq, dk, dv, grad_initial.s, None if grad_initial.s.dim() == 3 else grad_initial.z


def writes_views(cu_seqlens: Tensor | None, group: int) -> bool:
    """Whether results can be written into tensors of any layout that TMA knows: the ends of documents are
    not written by TMA, and gradients of grouped heads are summed first."""
    return cu_seqlens is None and group == 1


def uses_tile_list(cu_seqlens: Tensor | None, has_states: bool) -> bool:
    """Whether packed documents are one list of tiles. Where a state comes in or goes out, each is a row."""
    return cu_seqlens is not None and not has_states


def keeps_tensor(cu_seqlens: Tensor | None, causal: bool, has_states: bool) -> bool:
    """Whether a forward keeps something for its backward: states, or the tile list. Documents that are rows
    have a number of splits that is not known beforehand, and a bidirectional backward splits the list
    elsewhere."""
    return cu_seqlens is None or (causal and uses_tile_list(cu_seqlens, has_states))


def public_state(s: Tensor, z: Tensor | None, d: int, dv: int) -> tuple[Tensor, Tensor]:
    """The two tensors of a CosformerState, which share no memory with others."""
    if z is not None:
        return s, z
    s, z = s.split((2 * d * dv, 2 * d), -1)
    return s.unflatten(-1, (2, d, dv)).clone(), z.unflatten(-1, (2, d)).clone()


def _to_first_query_head(state: State, run: Kernels) -> State:
    """States of key heads as states of query heads: zero but for the first of each group."""
    if run.group == 1:
        return state
    expanded = []
    for x in state[:2]:
        y = x.new_zeros((x.shape[0], x.shape[1], run.group, *x.shape[2:]))
        y[:, :, 0] = x
        expanded.append(y.flatten(1, 2))
    return State.of(*expanded)


def _sum_query_heads(state: State, run: Kernels) -> State:
    s, z = public_state(state.s, None if state.s.dim() == 3 else state.z, *run.dims)
    return State.of(*(x.unflatten(1, (run.key_heads, run.group)).sum(2) for x in (s, z)))
