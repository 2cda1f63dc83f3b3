"""cosFormer attention in linear time and memory, in plain PyTorch: the CPU backend, and the
readable twin of the GPU kernels. Forward and a hand-written backward.

With x' = ReLU(x), theta_i = (pi/2) i/M, phi(x)_i = [x'_i cos theta_i, x'_i sin theta_i] (2D wide)
and v1_j = [v_j, 1], Ptolemy's identity turns the paper's equation into

    n1_i = [n_i, d_i] = sum_j (q'_i . k'_j) cos(theta_i - theta_j) v1_j = phi(q)_i^T S,
    S = sum_j phi(k)_j v1_j^T   [2D, Dv+1],         o_i = n_i / max(d_i, eps).

A call is a walk along the sequence with S in hand, made of three kinds of steps (steps.py):

    absorb   keys alone          S  += phi(K)^T V1
    apply    queries alone       N1  = phi(Q) S
    attend   queries and keys    chunk by chunk: N1 = phi(Q) S + P V1 with P = Q' K'^T * cos, then absorb

Bidirectional and cross attention are absorbs, then applies; causal attention is a row of attends
(absorbs before them where keys come first, as in cached decoding); whatever is short enough for the
square to cost less than the state is a single attend. The backward takes the same steps from the
end with R = dL/dS in hand, g_i = dL/do_i and n1'_i = [g_i, -(g_i . o_i)] / d_i:

    apply    dphi(Q) = N1' S^T                    R += phi(Q)^T N1'
    absorb   dphi(K) = V1 R^T                    dV1 = phi(K) R
    attend   both, and with A = N1' V1^T * cos:  dQ' += A K', dK' += A^T Q', dV1 += P^T N1'

Nothing of size T x D^2 ever exists: one state a step is kept for the backward (a fraction of q),
the states of the chunks inside a step are computed again.
"""

import torch
from torch import Tensor

from cosformer.ops.steps import Buffer, Step, Walk, room_for_states, tiling


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    state: Tensor | None,
    positions: Tensor | None,
    causal: bool,
    offset: int,
    horizon: float,
    eps: float,
    need_state: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """o [B, Tq, H, Dv]; d, not clamped, [B, Tq, H]; states for the backward, one behind another,
    [B, Hk, .], none unless asked to keep them; S after the last key [B, Hk, 2D, Dv+1] if needed.

    `state` is the incoming S and `positions` [B] how many positions it has seen.
    """
    shape, dims = (q.shape[0], k.shape[2]), (k.shape[3], v.shape[3])
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    rows, fill = tiling(q.shape[0], q.shape[2], dims)
    room = room_for_states(q.shape[1], k.shape[1], causal, dims, fill) if keep else 0
    out = q.new_empty((*q.shape[:-1], dims[1]))
    den = q.new_empty(q.shape[:-1], dtype=wide)
    kept = q.new_zeros((*shape, room), dtype=wide)
    after = q.new_empty((*shape, 2 * dims[0], dims[1] + 1), dtype=wide) if need_state else None
    for a in range(0, q.shape[0], rows):
        t = slice(a, a + rows)
        of_q = {"q": q[t], "out": out[t], "den": den[t].unsqueeze(-1)}
        x = Walk(
            of_q, {"k": k[t], "v": v[t]}, _at(key_mask, t), _at(positions, t), causal, offset, horizon, fill
        )
        s = _forward(x, _at(state, t), kept[t], eps, need_state)
        if after is not None:
            after[t] = 0 if s is None else s.view(after[t].shape)
    return out, den, kept, after


def _forward(x: Walk, state: Tensor | None, kept: Tensor, eps: float, need_state: bool) -> Tensor | None:
    s = None if state is None else state.flatten(0, 1).clone()
    slots = x.slots(kept) if kept.numel() else [None] * len(x.steps)
    for i, (step, slot) in enumerate(zip(x.steps, slots, strict=True)):
        update = need_state or i < x.last_read
        if slot is not None and s is not None:
            slot.copy_(s.view(slot.shape))
        if not step.has_q:
            s = _absorb(x, s, step) if update else s
            continue
        q1 = x.queries(step)
        n1 = x.buffer("n", q1.whole, x.dv + 1)
        if step.has_k:
            k1, v1 = x.keys(step), x.values(step)
            torch.bmm(x.square(step, q1, k1).rows, v1.rows, out=n1.rows)
        elif s is None:
            n1.whole.zero_()
        chunks = len(n1.chunks)
        if s is not None or chunks > 1:
            phi_q = x.phi("q", q1, step).chunks
        if step.has_k and (update or chunks > 1):
            phi_k = x.phi("k", k1, step).chunk_columns
        for c in range(chunks):
            if s is not None:
                n1.chunks[c].baddbmm_(phi_q[c], s, beta=1 if step.has_k else 0)
            if step.has_k and (update or c + 1 < chunks):
                s = _add_product(s, phi_k[c], v1.chunks[c])
        d = n1.whole[..., -1:]
        step.of("den").copy_(d)
        torch.div(n1.whole[..., :-1], d.clamp_min(eps), out=step.of("out"))
    return s


def backward(
    grad: Tensor,
    grad_state: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    den: Tensor,
    kept: Tensor,
    key_mask: Tensor | None,
    state: Tensor | None,
    positions: Tensor | None,
    causal: bool,
    offset: int,
    horizon: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """dq, dk, dv, and dL/dS of the incoming state, if there was one.

    Where no states were kept they are computed again.
    """
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    dstate = None if state is None else torch.zeros_like(state)
    inverse = den.clamp_min(eps).reciprocal_().unsqueeze_(-1)
    free = (den >= eps).to(den.dtype).neg_().unsqueeze_(-1)  # 0 where eps holds d, -1 elsewhere
    healthy = bool(den.isfinite().all())
    rows, fill = tiling(q.shape[0], q.shape[2], (k.shape[3], v.shape[3]))
    of_q = {"q": q, "grad": grad, "out": out, "inverse": inverse, "free": free, "dq": dq}
    of_k = {"k": k, "v": v, "dk": dk, "dv": dv}
    for a in range(0, q.shape[0], rows):
        t = slice(a, a + rows)
        tile_q, tile_k = ({name: y[t] for name, y in of.items()} for of in (of_q, of_k))
        x = Walk(tile_q, tile_k, _at(key_mask, t), _at(positions, t), causal, offset, horizon, fill)
        before = _states(x, _at(state, t), kept[t])
        r = _backward(x, before, _at(grad_state, t), state is not None, healthy)
        if dstate is not None and r is not None:
            dstate[t] = r.view(dstate[t].shape)
    return dq, dk, dv, dstate


def _backward(
    x: Walk, before: list[Tensor | None], grad_state: Tensor | None, carried: bool, healthy: bool
) -> Tensor | None:
    r = None if grad_state is None else grad_state.flatten(0, 1).clone()
    for i in reversed(range(len(x.steps))):
        step, s = x.steps[i], before[i]
        if step.has_q:
            q1, n1 = _row_gradients(x, step, healthy)
            gq, phi_q, chunks = x.buffer("gq", q1.whole, x.d), x.phi("q", q1, step), len(n1.chunks)
        if step.has_k:
            k1, v1 = x.keys(step), x.values(step)
            gk, gv = x.buffer("gk", k1.whole, x.d), x.buffer("gv", v1.whole, x.dv + 1)
            phi_k, chunks = x.phi("k", k1, step), len(v1.chunks)
        if step.has_q and step.has_k:
            torch.bmm(x.square(step, q1, k1).columns, n1.rows, out=gv.rows)
            a = x.square(step, n1, v1)
            torch.bmm(a.rows, k1.rows, out=gq.rows)
            torch.bmm(a.columns, q1.rows, out=gk.rows)

        if step.has_q and not step.has_k and s is None:
            gq.whole.zero_()
        if step.has_q and s is not None:
            dphi = x.buffer("large", q1.whole, 2 * x.d)
            for c in range(chunks):
                torch.bmm(n1.chunks[c], s.mT, out=dphi.chunks[c])
                if c + 1 < chunks:
                    s = _add_product(s, phi_k.chunk_columns[c], v1.chunks[c])
            x.through_phi("q", gq, dphi, step)

        if step.has_k and chunks > 1 and r is None:
            r = x.zero_state()
        reads = step.has_k and r is not None
        if step.has_k and not step.has_q and r is None:
            gk.whole.zero_()
            gv.whole.zero_()
        if reads:
            dphi = x.buffer("large", k1.whole, 2 * x.d)
        for c in reversed(range(chunks)):
            if reads and r is not None:
                torch.bmm(v1.chunks[c], r.mT, out=dphi.chunks[c])
                gv.chunks[c].baddbmm_(phi_k.chunks[c], r, beta=1 if step.has_q else 0)
            if step.has_q and (c > 0 or i > 0 or carried):
                r = _add_product(r, phi_q.chunk_columns[c], n1.chunks[c])
        if reads:
            x.through_phi("k", gk, dphi, step)

        if step.has_q:
            _relu_backward(gq, q1, step.of("dq"))
        if step.has_k:
            _relu_backward(gk, k1, step.of("dk"))
            step.of("dv").copy_(gv.whole[..., :-1])
    return r


def _states(x: Walk, state: Tensor | None, kept: Tensor) -> list[Tensor | None]:
    """S as each step finds it, in memory the step may change; None where there is nothing yet."""
    found: list[Tensor | None] = []
    s = None if state is None else state.flatten(0, 1)
    if kept.numel():
        return [(s if slot is None else slot.clone().flatten(0, 1)) for slot in x.slots(kept)]
    s = None if s is None else s.clone()
    for i, step in enumerate(x.steps):
        attends = step.has_q and step.has_k and not x.direct
        if attends and s is None:
            s = x.zero_state()
        found.append(s.clone() if s is not None and attends else s)
        if step.has_k and i < x.last_read:
            s = _absorb(x, s, step)
    return found


def _row_gradients(x: Walk, step: Step, healthy: bool) -> tuple[Buffer, Buffer]:
    """q' and n1' = [g, -(g . o)] / d of a step; where eps holds d, its gradient is zero.

    A row that nothing downstream uses (g = 0) takes no part, whatever it holds: a padded query full
    of NaN would otherwise reach the gradient of every key as 0 x NaN.
    """
    q1, g = x.queries(step), step.of("grad")
    n1 = x.buffer("n", q1.whole, x.dv + 1)
    dn = n1.whole[..., :-1]
    torch.mul(g, step.of("inverse"), out=dn)
    go = torch.mul(dn, step.of("out"), out=x.buffer("gv", q1.whole, x.dv).whole)
    torch.mul(go.sum(-1, keepdim=True), step.of("free"), out=n1.whole[..., -1:])
    if not healthy:
        unused = (g == 0).all(-1, keepdim=True)
        q1.whole.masked_fill_(unused, 0)
        n1.whole.masked_fill_(unused, 0)
    return q1, n1


def _absorb(x: Walk, s: Tensor | None, step: Step) -> Tensor | None:
    phi, v1 = x.phi("k", x.keys(step), step), x.values(step)
    for left, right in zip(phi.chunk_columns, v1.chunks, strict=True):
        s = _add_product(s, left, right)
    return s


def _add_product(total: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    """total += left right, in place; a fresh tensor where there was none."""
    return torch.bmm(left, right) if total is None else total.baddbmm_(left, right)


def _relu_backward(grad: Buffer, x: Buffer, into: Tensor) -> None:
    if into.dtype == grad.whole.dtype:
        torch.ops.aten.threshold_backward.grad_input(grad.whole, x.whole, 0, grad_input=into)
    else:
        into.copy_(torch.ops.aten.threshold_backward(grad.whole, x.whole, 0))


def _at(x: Tensor | None, rows: slice) -> Tensor | None:
    return None if x is None else x[rows]
