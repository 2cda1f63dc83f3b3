"""Which kernels make up a forward and a backward.

Causal attention is a walk; a sequence cut into pieces first gets the states its pieces start from.
Bidirectional and cross attention sum up a state and apply it. Such states are kept for the backward, which
sums them again where they were not (with packing). Packed documents are one list of tiles (documents.py);
where states come or go, each is a row of its own.

A state is two tensors, S and z, or one that holds both, one behind the other, and None.
"""

from functools import partial

from torch import Tensor

from cosformer.ops.gpu.carried_state import State
from cosformer.ops.gpu.launch_cache import make_replay
from cosformer.ops.hopper.call import Call
from cosformer.ops.hopper.launch_plan import HopperLaunchPlan
from cosformer.ops.hopper.partition import MAX_INLINE_STATES


def forward(
    plan: HopperLaunchPlan, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    numerator: Tensor | None, denominator: Tensor | None, positions: Tensor | None, causal: bool, offset: int,
    horizon: float, eps: float, need_state: bool, keep: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """o [B, Tq, H, Dv], d [B, H, Tq] before eps, what to `keep` for a backward, and the state after the last
    key if it is needed."""
    out = plan.empty((*q.shape[:-1], v.shape[-1]), q.dtype)
    d = plan.empty((q.shape[0], q.shape[2], q.shape[1]))
    tensors = {"q": q, "k": k, "v": v, "o": out}
    came = State.given(numerator, denominator)
    joined = is_joined(cu_seqlens, need_state or came is not None)
    call = Call(plan, tensors, d, key_mask, cu_seqlens, positions, offset, horizon, eps, causal, joined)
    # Nobody else asks for the states: those that use them sum them up, and a start is saved.
    alone = not keep and not need_state and came is None and cu_seqlens is None
    if not causal and alone and call.is_small:
        pieces = call.quarters(k.shape[1])
        states = State.from_packed(call.absorb("o", pieces), k.shape[3])
        call.apply_o(call.quarters(q.shape[1]), states, parts=pieces.per_row)
        return out, d, None, None, None
    if not causal:
        pieces = call.pieces_to_sum(k.shape[2], k.shape[1])
        state = call.total(call.absorb("o", pieces), pieces, came)
        call.apply_o(call.pieces_to_apply(q.shape[2], q.shape[1]), state)
        if joined:
            call.whole_o()
            if call.groups is not None:
                call.square_o(call.groups)
        return out, d, state.s, state.s if need_state else None, None
    pieces = call.pieces_to_walk(every=need_state or came is not None)
    after: State | None
    if pieces.one_per_row:
        after = call.new_state(k.shape[2]) if need_state else None
        call.walk_o(pieces, came, after)
        return out, d, call.listed, *((None, None) if after is None else after[:2])
    parts = call.parts_of("o", pieces)
    if alone and pieces.per_row * parts <= MAX_INLINE_STATES[call.width]:
        states = State.from_packed(call.absorb("o", pieces.subdivided(parts), parts), k.shape[3])
        call.walk_o(pieces, states, None, parts)
        return out, d, None, None, None
    begin, after = call.running("o", pieces, came, total=need_state)
    call.walk_o(pieces, begin, None)
    return out, d, call.listed if joined else begin.s, None if after is None else after.s, None


again = partial(make_replay, forward, (False, False))


def backward(
    plan: HopperLaunchPlan, grad: Tensor, grad_numerator: Tensor | None, grad_denominator: Tensor | None,
    q: Tensor,
    k: Tensor, v: Tensor, out: Tensor, d: Tensor, kept: Tensor | None, key_mask: Tensor | None,
    cu_seqlens: Tensor | None, numerator: Tensor | None, denominator: Tensor | None, positions: Tensor | None,
    causal: bool, offset: int, horizon: float, eps: float,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """dq, dk, dv, and the gradient of the state that came in."""
    dq = plan.empty(tuple(q.shape), q.dtype)
    heads = q.shape[2] if causal else k.shape[2]
    dk, dv = (plan.empty((*x.shape[:2], heads, x.shape[3]), x.dtype) for x in (k, v))
    tensors = {"q": q, "k": k, "v": v, "o": out, "g": grad, "dq": dq, "dk": dk, "dv": dv}
    came, back = State.given(numerator, denominator), State.given(grad_numerator, grad_denominator)
    joined = is_joined(cu_seqlens, back is not None or came is not None)
    listed = kept if causal and joined else None
    call = Call(
        plan, tensors, d, key_mask, cu_seqlens, positions, offset, horizon, eps, causal, joined, listed
    )  # fmt: skip
    if not causal:
        if kept is None:
            pieces = call.pieces_to_sum(k.shape[2], k.shape[1])
            state = call.total(call.absorb("o", pieces), pieces, came)
        else:
            state = State.from_packed(kept, k.shape[3])
        pieces = call.pieces_to_sum(q.shape[2], q.shape[1])
        r = call.total(call.apply_dq(pieces, state), pieces, back)
        call.apply_dkv(call.pieces_to_apply(k.shape[2], k.shape[1]), r)
        if joined:
            call.whole_gradients()
            if call.groups is not None:
                call.square_gradients(call.groups)
        return dq, dk, dv, r.s, None
    # Each query head has a gradient of the state of its own: what comes back is given to one of those
    # that share a key head, and what goes on is their sum.
    back = None if back is None else _alone(back, call)
    pieces = call.pieces_to_walk(every=back is not None or came is not None)
    before: State | None
    if pieces.one_per_row:
        call.walk_dq(pieces, came)
        before = call.new_state(call.heads) if came is not None else None
        call.walk_dkv(pieces, back, before)
    else:
        if kept is None or joined:
            begin, _ = call.running("o", pieces, came, total=False)
        else:
            begin = State.from_packed(kept, k.shape[3])
        call.walk_dq(pieces, begin)
        begin, before = call.running("dv", pieces, back, total=came is not None)
        call.walk_dkv(pieces, begin, None)
    if call.group > 1:
        dk, dv = (call.fold(part, tuple(x.shape), x.shape[3]) for part, x in ((dk, k), (dv, v)))
        before = None if before is None else _together(before, call)
    if before is None:
        return dq, dk, dv, None, None
    return dq, dk, dv, before.s, None if before.s.dim() == 3 else before.z


def is_joined(cu_seqlens: Tensor | None, states: bool) -> bool:
    """Whether documents are one list of tiles: where states come or go, each is a row of its own."""
    return cu_seqlens is not None and not states


def is_kept(cu_seqlens: Tensor | None, causal: bool, states: bool) -> bool:
    """Whether a forward keeps something for its backward: states, or the list of tiles. Documents that are
    rows have as many states as they have pieces, and a bidirectional backward cuts the list elsewhere."""
    return cu_seqlens is None or (causal and is_joined(cu_seqlens, states))


def public(s: Tensor, z: Tensor | None, d: int, dv: int) -> tuple[Tensor, Tensor]:
    """The two tensors of a CosformerState, which share their memory with nothing else."""
    if z is not None:
        return s, z
    s, z = s.split((2 * d * dv, 2 * d), -1)
    return s.unflatten(-1, (2, d, dv)).clone(), z.unflatten(-1, (2, d)).clone()


def _alone(state: State, call: Call) -> State:
    if call.group == 1:
        return state
    parts = []
    for x in state[:2]:
        part = x.new_zeros((x.shape[0], x.shape[1], call.group, *x.shape[2:]))
        part[:, :, 0] = x
        parts.append(part.flatten(1, 2))
    return State.of(*parts)


def _together(state: State, call: Call) -> State:
    s, z = public(state.s, None if state.s.dim() == 3 else state.z, *call.dims)
    return State.of(*(x.unflatten(1, (call.key_heads, call.group)).sum(2) for x in (s, z)))
