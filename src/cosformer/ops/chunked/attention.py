"""cosFormer attention in linear time and memory, in plain PyTorch: the CPU backend, and the
readable twin of the GPU kernels. Forward and a hand-written backward.

With x' = ReLU(x), theta_i = (pi/2) i/M, v1_j = [v_j, 1] and both phases of a value side by side,
vv_j = [cos(theta_j) v1_j, sin(theta_j) v1_j], Ptolemy's identity turns the paper's equation into

    [n_i, d_i] = sum_j (q'_i . k'_j) cos(theta_i - theta_j) v1_j = cos(theta_i) w0_i + sin(theta_i) w1_i
    w_i = [w0_i, w1_i] = sum_j (q'_i . k'_j) vv_j = q'_i^T S,    S = sum_j k'_j vv_j^T  [D, 2(Dv+1)]
    o_i = n_i / max(d_i, eps)

All phases lie on the side of the values: no cosine enters a product of queries and keys. A call goes
along the sequence with the state S, in three kinds of steps (plan.py), named as the GPU kernels are:

    chunk_state   keys alone       S  += K'^T VV
    state_apply   queries alone    W   = Q' S
    chunk         both             chunk by chunk: W = Q' S + P VV with P = tril(Q' K'^T), then S += K'^T VV

Bidirectional and cross attention are chunk_state steps, then state_apply steps; causal attention is chunk
steps (after chunk_state steps where keys come first, as in cached decoding); a call so short that the
quadratic form costs less than the state is one chunk step. The backward takes the same steps in reverse order
with R = dL/dS, g_i = dL/do_i, n1'_i = [g_i, -(g_i . o_i)] / d_i and both its phases,
m_i = [cos(theta_i) n1'_i, sin(theta_i) n1'_i]:

    state_apply   dQ' = M S^T                          R += Q'^T M
    chunk_state   dK' = VV R^T                       dVV  = K' R
    chunk         both, and with A = tril(M VV^T):   dQ' += A K',  dK' += A^T Q',  dVV += P^T M

M VV^T carries cos(theta_i - theta_j) by itself, and dv_j = cos(theta_j) dvv0_j + sin(theta_j) dvv1_j.
In memory rows of vv, w, m, S and R are [v cos, v sin, 1 cos, 1 sin, 0 ...], filled up to whole registers.
Where g . v - g . o cancels, what rounding leaves of it is taken out (residual.py).

Nothing of size T x D^2 ever exists: one state a step is kept for the backward (a fraction of q),
the states of the chunks inside a step are computed again.
"""

import torch
from torch import Tensor

from cosformer.ops.args import AttentionArgs
from cosformer.ops.autograd import Saved
from cosformer.ops.chunked.correction import correct_past, correct_square, correction
from cosformer.ops.chunked.plan import ChunkPlan, PlanStep, kept_size, tiling
from cosformer.ops.chunked.residual import residual
from cosformer.ops.chunked.workspace import Buffer, halves, width
from cosformer.ops.seen import finite


def forward(
    args: AttentionArgs, state: Tensor | None, out: Tensor, den: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Writes o into `out` [B, Tq, H, Dv] and d, not clamped, into `den` [B, Tq, H]. Returns the states kept
    for the backward, one behind another, [B, Hk, .], none unless asked to keep them; and S after the last
    key [B, Hk, D, .] if it is to be returned.

    `state` is the incoming S; of `args`, numerator and denominator are not read.
    """
    q, k, v, positions = args.q, args.k, args.v, args.positions
    shape, dims = (q.shape[0], k.shape[2]), (k.shape[3], v.shape[3])
    lengths = (q.shape[1], k.shape[1])
    size = kept_size(*lengths, args.query_offset, args.causal, q.shape[2], dims, q.device) if args.keep else 0
    kept = q.new_empty((*shape, size), dtype=args.accum_dtype)
    after = None
    if args.return_state:
        after = q.new_empty((*shape, dims[0], width(dims[1])), dtype=args.accum_dtype)
    fill, rows = tiling(max(lengths), q.shape[2], dims, q.device)
    for a in range(0, q.shape[0], rows):
        t = slice(a, a + rows)
        of_q = {"q": q[t], "out": out[t], "den": den[t].unsqueeze(-1)}
        x = ChunkPlan(of_q, {"k": k[t], "v": v[t]}, _at(args.key_mask, t), _at(positions, t), args, fill)
        s = _forward(x, _at(state, t), kept[t], args.eps, args.return_state)
        if after is not None:
            after[t] = 0 if s is None else s.view(after[t].shape)
    return kept, after


def _forward(x: ChunkPlan, state: Tensor | None, kept: Tensor, eps: float, need_state: bool) -> Tensor | None:
    s = None if state is None else state.flatten(0, 1).clone()
    slots: list[Tensor | None] = [None] * len(x.steps)
    if kept.numel():
        slots, used = x.slots(kept)
        kept[..., used:] = 0
    for i, (step, slot) in enumerate(zip(x.steps, slots, strict=True)):
        update = need_state or i < x.last_read
        if slot is not None and s is not None:
            slot.copy_(s.view(slot.shape))
        if not step.has_q:
            s = _chunk_state(x, s, step) if update else s
            continue
        q1 = x.queries(step)
        w = x.phased("m", q1.whole)
        if step.has_k:
            k1, vv = x.keys(step), x.values(step)
            p = x.square(step, q1, (q1.rows, k1.rows))
            x.seen_product(step, p.rows, vv.rows, w.rows)
        elif s is None:
            w.whole.zero_()
        chunks = len(w.chunks)
        for c in range(chunks):
            if s is not None:
                w.chunks[c].baddbmm_(q1.chunks[c], s, beta=1 if step.has_k else 0)
            if step.has_k and (update or c + 1 < chunks):
                s = _add_product(s, k1.chunk_columns[c], vv.chunks[c])
        _divide(w, step, eps)
    return s


def _divide(w: Buffer, step: PlanStep, eps: float) -> None:
    """o = (cos w0 + sin w1) / max(d, eps)."""
    cos, sin, d = step.of("cos_q"), step.of("sin_q"), step.of("den")
    y0, y1 = w.last
    torch.mul(y0, cos, out=d).addcmul_(y1, sin)
    clamped = d.clamp_min(eps)
    w0, w1, _ = w.parts
    torch.addcmul(w0.mul_(cos / clamped), w1, sin / clamped, out=step.of("out"))


def backward(
    args: AttentionArgs, state: Tensor | None, saved: Saved, grad: Tensor, grad_state: Tensor | None,
    into: tuple[Tensor, Tensor, Tensor],
) -> Tensor | None:  # fmt: skip
    """Writes dq, dk, dv; returns dL/dS of the incoming state, if there was one. Where no states were kept
    they are computed again."""
    q, k, v = args.q, args.k, args.v
    out, den, kept = saved
    dq, dk, dv = into
    dstate = None if state is None else torch.zeros_like(state)
    inverse = den.clamp_min(args.eps).reciprocal_().unsqueeze_(-1)
    free = (den >= args.eps).to(den.dtype).neg_().unsqueeze_(-1)  # 0 where eps holds d, -1 elsewhere
    healthy = finite(den) and finite(out)
    dims = (k.shape[3], v.shape[3])
    fill, rows = tiling(max(q.shape[1], k.shape[1]), q.shape[2], dims, q.device)
    of_q = {"q": q, "grad": grad, "out": out, "inverse": inverse, "free": free, "dq": dq}
    of_k = {"k": k, "v": v, "dk": dk, "dv": dv}
    for a in range(0, q.shape[0], rows):
        t = slice(a, a + rows)
        tile_q, tile_k = ({name: y[t] for name, y in of.items()} for of in (of_q, of_k))
        x = ChunkPlan(tile_q, tile_k, _at(args.key_mask, t), _at(args.positions, t), args, fill)
        before = _states(x, _at(state, t), _at(kept, t))
        r = _backward(x, before, _at(grad_state, t), state is not None, healthy)
        if dstate is not None and r is not None:
            dstate[t] = r.view(dstate[t].shape)
    if not healthy and grad_state is None:
        unused = _unused_keys(args, grad)
        dk.masked_fill_(unused, 0)
        dv.masked_fill_(unused, 0)
    return dstate


def _unused_keys(args: AttentionArgs, grad: Tensor) -> Tensor:
    """The keys [B, Tk, Hk, 1] (all of a head are alike where it is not causal) that no query with a gradient
    sees: theirs is zero, whatever they hold."""
    used = (grad != 0).any(-1).unflatten(2, (args.k.shape[2], -1)).any(3)
    if not args.causal:
        return ~used.any(1, keepdim=True).unsqueeze(-1)
    at = args.query_offset + torch.arange(used.shape[1], device=used.device)
    last = torch.where(used, at[:, None], -1).amax(1, keepdim=True)
    return (torch.arange(args.k.shape[1], device=used.device)[:, None] > last).unsqueeze(-1)


def _backward(
    x: ChunkPlan, before: list[Tensor | None], grad_state: Tensor | None, carried: bool, healthy: bool
) -> Tensor | None:
    r = None if grad_state is None else grad_state.flatten(0, 1).clone()
    for i in reversed(range(len(x.steps))):
        step, s = x.steps[i], before[i]
        both, chunks = step.has_q and step.has_k, 1
        if step.has_k:
            k1, vv = x.keys(step), x.values(step)
            chunks = len(vv.chunks)
        if step.has_q:
            q1, m = _row_gradients(x, step, healthy)
            g = x.buffer("g", q1.whole, x.d)
            if both:
                a = x.square(step, q1, *zip(m.halves, vv.halves, strict=True))
                x.seen_product(step, a.rows, k1.rows, g.rows)
                s = x.state_copy(s) if chunks > 1 else s
            if s is not None:
                transposed = _transposed_halves(s, x.dv)
                for c in range(chunks):
                    _add_halves(g.chunks[c], m.chunk_halves[c], transposed, fresh=not both)
                    if c + 1 < chunks:
                        s.baddbmm_(k1.chunk_columns[c], vv.chunks[c])
            elif not both:
                g.whole.zero_()
            dq = step.of("dq")  # memory to work in, until it is written
            products = dq if dq.dtype == x.dtype else torch.empty_like(g.whole)
            rho = residual(q1.whole, g.whole, step.of("free"), products)
            if rho is not None:
                at, change = correction(step, rho, m)
                if both:
                    correct_square(x, step, at, change, k1, vv, a, g)
                correct_past(before[i], at, change, (k1, vv) if chunks > 1 else None, x.dv, g)
            _relu_backward(g, q1, dq)

        if step.has_k:
            g = x.buffer("g", k1.whole, x.d)
            if both:
                x.seen_product(step, a.columns, q1.rows, g.rows, transposed=True)
                r = x.zero_state() if r is None and chunks > 1 else r
            elif r is None:
                g.whole.zero_()
                vv.whole.zero_()
        reads = step.has_k and r is not None
        if r is not None:
            transposed = _transposed_halves(r, x.dv)
        for c in reversed(range(chunks)):
            if step.has_k and r is not None:
                _add_halves(g.chunks[c], vv.chunk_halves[c], transposed, fresh=not both)
                torch.bmm(k1.chunks[c], r, out=vv.chunks[c])  # from here on, vv holds its gradient
            if step.has_q and (c > 0 or i > 0 or carried):
                r = _add_product(r, q1.chunk_columns[c], m.chunks[c])
        if step.has_k:
            _relu_backward(g, k1, step.of("dk"))
            if both:
                p = x.square(step, q1, (q1.rows, k1.rows))
                x.seen_product(step, p.columns, m.rows, vv.rows, transposed=True, fresh=not reads)
            v0, v1, _ = vv.parts
            torch.addcmul(v0.mul_(step.of("cos_k")), v1, step.of("sin_k"), out=step.of("dv"))
    return r


def _states(x: ChunkPlan, state: Tensor | None, kept: Tensor | None) -> list[Tensor | None]:
    """S as each step finds it; None where there is nothing yet."""
    s = None if state is None else state.flatten(0, 1)
    if kept is not None:
        return [(s if slot is None else slot.flatten(0, 1)) for slot in x.slots(kept)[0]]
    found: list[Tensor | None] = []
    s = None if s is None else s.clone()
    for i, step in enumerate(x.steps):
        adds_keys = step.has_k and i < x.last_read
        found.append(s.clone() if s is not None and adds_keys and step.has_q else s)
        if adds_keys:
            s = _chunk_state(x, s, step)
    return found


def _row_gradients(x: ChunkPlan, step: PlanStep, healthy: bool) -> tuple[Buffer, Buffer]:
    """q' and m, the phases of n1' = [g, -(g . o)] / d, of a step.

    A row that nothing downstream uses (g = 0) takes no part, whatever it holds: a padded query full
    of NaN would otherwise reach the gradient of every key as 0 x NaN.
    """
    q1, g = x.queries(step), step.of("grad")
    m = x.phased("m", q1.whole)
    m0, m1, tail = m.parts
    factor = step.of("tail_q") * step.of("inverse")
    torch.mul(g, factor[..., :1], out=m0)
    torch.mul(g, factor[..., 1:2], out=m1)
    go = x.product(g, step.of("out")).sum(-1, keepdim=True)
    # The same factors as above: g . v - g . o cancels, and two roundings of one factor would stay.
    torch.mul(go.mul_(step.of("free")), factor, out=tail)
    if not healthy:
        unused = (g == 0).all(-1, keepdim=True)
        q1.whole.masked_fill_(unused, 0)
        m.whole.masked_fill_(unused, 0)
    return q1, m


def _chunk_state(x: ChunkPlan, s: Tensor | None, step: PlanStep) -> Tensor | None:
    k1, vv = x.keys(step), x.values(step)
    for left, right in zip(k1.chunk_columns, vv.chunks, strict=True):
        s = _add_product(s, left, right)
    return s


def _add_product(total: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    """total += left right, in place; a fresh tensor where there was none."""
    return torch.bmm(left, right) if total is None else total.baddbmm_(left, right)


def _transposed_halves(state: Tensor, dv: int) -> tuple[Tensor, Tensor]:
    """S^T, in halves."""
    left, right = halves(state, dv)
    return left.mT, right.mT


def _add_halves(
    total: Tensor, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor], fresh: bool
) -> None:
    """total += left right, half by half; a fresh total holds nothing yet."""
    total.baddbmm_(left[0], right[0], beta=0 if fresh else 1).baddbmm_(left[1], right[1])


def _relu_backward(grad: Buffer, x: Buffer, into: Tensor) -> None:
    if into.dtype == grad.whole.dtype:
        torch.ops.aten.threshold_backward.grad_input(grad.whole, x.whole, 0, grad_input=into)
    else:
        into.copy_(torch.ops.aten.threshold_backward(grad.whole, x.whole, 0))


def _at(x: Tensor | None, rows: slice) -> Tensor | None:
    return None if x is None else x[rows]
