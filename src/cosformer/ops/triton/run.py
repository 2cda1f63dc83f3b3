"""Which kernels make up a forward and a backward.

Causal attention is a walk; a sequence cut into pieces first gets the states its pieces start from
(absorb, scan). Bidirectional and cross attention sum up a state (absorb, scan) and apply it. Where
causal queries and keys do not begin and end together, keys before the first query are absorbed,
queries after the last key apply the state, and what lies between is walked. For the backward the state of
bidirectional attention is kept, and those that pieces start from where a walk is all there is; others are
computed again.
"""

from functools import partial
from typing import NamedTuple

from torch import Tensor

from cosformer.ops.chunked.plan import overlap
from cosformer.ops.triton.carried import NOTHING, State
from cosformer.ops.triton.kernels import Kernels
from cosformer.ops.triton.tape import Tape, call, player


class Span(NamedTuple):
    """Queries and keys of a call that are worked on together."""

    q: slice
    k: slice


def forward(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, cu_seqlens: Tensor | None, came: State | None,
    positions: Tensor | None, causal: bool, offset: int, horizon: float, eps: float, need_state: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, State | None, Tensor | None]:  # fmt: skip
    """o [B, Tq, H, Dv], d [B, H, Tq] before eps, the state after the last key (for bidirectional attention
    always, for causal attention if needed), and what the pieces of a walk started from, to `keep`."""
    inputs = (q, k, v, key_mask, cu_seqlens, *(came or NOTHING)[:2], positions)
    return call(_forward, inputs, (causal, offset, horizon, eps, need_state, keep), again=cu_seqlens is None)


def _forward(
    tape: Tape, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, cu_seqlens: Tensor | None,
    s: Tensor | None, z: Tensor | None, positions: Tensor | None, causal: bool, offset: int, horizon: float,
    eps: float, need_state: bool, keep: bool,
) -> tuple[Tensor, Tensor, State | None, Tensor | None]:  # fmt: skip
    came = State.given(s, z)
    batch, length, heads, _ = q.shape
    out, d = tape.empty((batch, length, heads, v.shape[3]), q.dtype), tape.empty((batch, heads, length))
    tensors = {"q": q, "k": k, "v": v, "out": out}
    run = Kernels(tape, tensors, d, key_mask, cu_seqlens, positions, offset, horizon, eps)
    if not causal:
        state = run.total("o", slice(0, k.shape[1]), came)
        run.apply("o", slice(0, q.shape[1]), state)
        return out, d, state, None
    one_token = q.shape[1] == k.shape[1] == 1 and offset == 0 and cu_seqlens is None
    if one_token and came is not None and need_state:
        state = run.new_state()
        run.step(came, state)
        return out, d, state, None
    early, both, late = _spans(q.shape[1], k.shape[1], offset)
    run.apply("o", early.q, came)
    state = run.total("o", early.k, came)
    after = need_state or late.q.stop > late.q.start
    kept = None
    if both.q.stop > both.q.start:
        state, begin = _walk_forward(run, both, state, after)
        if keep and begin is not None and _begin_and_end_together(q, k, offset, cu_seqlens):
            kept = begin.s
    run.apply("o", late.q, state)
    if need_state:
        state = run.total("o", late.k, state)
    return out, d, state, kept


again = partial(player, _forward, (False, False))


def backward(
    grad: Tensor, grad_state: State | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, d: Tensor,
    kept: Tensor | None, key_mask: Tensor | None, cu_seqlens: Tensor | None, came: State | None,
    positions: Tensor | None, causal: bool, offset: int, horizon: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor, State | None]:  # fmt: skip
    """dq, dk, dv, and the gradient of the state that came in. Without `kept` (the state of bidirectional
    attention, or those that the pieces of a walk start from, S and z behind one another) they are made
    again."""
    inputs = (
        grad, *(grad_state or NOTHING)[:2], q, k, v, out, d, kept, key_mask, cu_seqlens,
        *(came or NOTHING)[:2], positions,
    )  # fmt: skip
    return call(_backward, inputs, (causal, offset, horizon, eps), again=cu_seqlens is None)


def _backward(
    tape: Tape, grad: Tensor, gs: Tensor | None, gz: Tensor | None, q: Tensor, k: Tensor, v: Tensor,
    out: Tensor, d: Tensor, kept: Tensor | None, key_mask: Tensor | None, cu_seqlens: Tensor | None,
    s: Tensor | None, z: Tensor | None, positions: Tensor | None, causal: bool, offset: int, horizon: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, State | None]:  # fmt: skip
    came, grad_state = State.given(s, z), State.given(gs, gz)
    dq, dk, dv = (tape.empty(tuple(x.shape), x.dtype) for x in (q, k, v))
    tensors = {"q": q, "k": k, "v": v, "out": out, "g": grad, "dq": dq, "dk": dk, "dv": dv}
    run = Kernels(tape, tensors, d, key_mask, cu_seqlens, positions, offset, horizon, eps)
    if not causal:
        queries, keys = slice(0, q.shape[1]), slice(0, k.shape[1])
        state = run.total("o", keys, came) if kept is None else run.within(kept)
        weighs = run.weighs()
        if not weighs:
            run.weigh()
        run.apply("dq", queries, state, weighs)
        r = run.total("dv", queries, grad_state)
        run.apply("dk", keys, r)
        run.apply("dv", keys, r)
        return dq, dk, dv, r
    run.weigh()
    early, both, late = _spans(q.shape[1], k.shape[1], offset)
    before = run.total("o", early.k, came)
    r = grad_state
    if late.q.stop > late.q.start:
        run.apply("dq", late.q, run.total("o", both.k, before))
        r = run.total("dv", late.q, r)
    run.apply("dk", late.k, r)
    run.apply("dv", late.k, r)
    if both.q.stop > both.q.start:
        carried = came is not None or early.k.stop > early.k.start
        begin = None if kept is None else run.within(kept)
        r = _walk_backward(run, both, before, r, carried, begin)
    run.apply("dk", early.k, r)
    run.apply("dv", early.k, r)
    run.apply("dq", early.q, came)
    if came is not None:
        r = run.total("dv", early.q, r)
    return dq, dk, dv, r


def step(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, state: State, positions: Tensor,
    horizon: float, eps: float,
) -> Tensor:  # fmt: skip
    """One token a row; the state is overwritten. Gives o."""
    inputs = (q, k, v, key_mask, state.s, state.z, positions)
    (out,) = call(_step, inputs, (horizon, eps), again=True)
    return out


def _step(
    tape: Tape, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, s: Tensor, z: Tensor,
    positions: Tensor, horizon: float, eps: float,
) -> tuple[Tensor]:  # fmt: skip
    batch, length, heads, _ = q.shape
    out, d = tape.empty((batch, length, heads, v.shape[3]), q.dtype), tape.empty((batch, heads, length))
    state = State.of(s, z)
    tensors = {"q": q, "k": k, "v": v, "out": out}
    Kernels(tape, tensors, d, key_mask, None, positions, 0, horizon, eps).step(state, state)
    return (out,)


def _spans(tq: int, tk: int, offset: int) -> tuple[Span, Span, Span]:
    """What comes before there are both queries and keys, where there are both, and after."""
    q0, k0, n = overlap(tq, tk, offset)
    q1, k1 = q0 + n, k0 + n
    return (
        Span(slice(0, q0), slice(0, k0)),
        Span(slice(q0, q1), slice(k0, k1)),
        Span(slice(q1, tq), slice(k1, tk)),
    )


def _begin_and_end_together(q: Tensor, k: Tensor, offset: int, cu_seqlens: Tensor | None) -> bool:
    """Whether a walk is all there is, and the number of its pieces known."""
    return q.shape[1] == k.shape[1] and offset == 0 and cu_seqlens is None


def _walk_forward(
    run: Kernels, span: Span, came: State | None, need_state: bool
) -> tuple[State | None, State | None]:
    """The state after the span, if needed, and those its pieces started from, if there are several."""
    pieces = run.pieces(span.q, every=need_state or came is not None)
    after: State | None = None
    if pieces.single:
        after = run.new_state() if need_state else None
        run.walk("o", *span, pieces, came, after)
        return after, None
    begin, after = run.starts("o", span.k, came, pieces, total=need_state)
    run.walk("o", *span, pieces, begin, None)
    return after, begin


def _walk_backward(
    run: Kernels, span: Span, came: State | None, back: State | None, carried: bool, begin: State | None
) -> State | None:
    """`back`: the gradient of the state after the span; returns the one before it, if carried. `begin`: what
    pieces start from, where that was kept."""
    pieces = run.pieces(span.q, every=back is not None or came is not None)
    before: State | None = None
    start: State | None = back
    if pieces.single:
        run.walk("dq", *span, pieces, came, None)
        before = run.new_state() if carried else None
        run.walk("dk", *span, pieces, start, before)
    else:
        if begin is None:
            begin, _ = run.starts("o", span.k, came, pieces, total=False)
        run.walk("dq", *span, pieces, begin, None)
        start, before = run.starts("dv", span.q, back, pieces, total=carried)
        run.walk("dk", *span, pieces, start, None)
    run.walk("dv", *span, pieces, start, None)
    return before
