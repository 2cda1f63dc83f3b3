"""The paper's equation as it stands: quadratic, plain PyTorch, the judge of everything else.

    o_i = sum_j w_ij v_j / max(sum_j w_ij, eps),
    w_ij = (ReLU(q_i) . ReLU(k_j)) cos((pi/2)(i - j)/M)          (Eq. 10 of the paper, kept whole)

over the keys j that query i may see: those not masked, of its own document, and j <= i if causal.
Arithmetic is done in the inputs' own type, whatever it is; gradients come from autograd.
"""

import math

import torch
from torch import Tensor

from cosformer.ops.args import AttentionArgs
from cosformer.ops.seen import Quotient, SeenScores, SeenSum


def reference(args: AttentionArgs) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """o [B, Tq, H, Dv], and the outgoing sums of the heads without a window, if they are wanted."""
    if args.cu_seqlens is not None:
        return _documents(args)
    if args.key_mask is not None:
        hidden = ~args.key_mask[:, :, None, None]
        args = args.but(k=args.k.masked_fill(hidden, 0), v=args.v.masked_fill(hidden, 0))
    if args.windows is not None:
        return _windows(args)
    q, k, v = args.q, args.k, args.v
    q_, k_ = q.relu(), k.relu()
    i = torch.arange(q.shape[1], device=q.device) + args.query_offset
    j = torch.arange(k.shape[1], device=q.device)
    distance = i[:, None] - j[None, :]
    sees = distance >= 0 if args.causal else torch.ones_like(distance, dtype=torch.bool)
    q_ = q_.unflatten(2, (k.shape[2], args.group))  # (B, Tq, Hk, G, D)
    numerator, denominator = _sums(q_, k_, v, distance, sees, args.m)

    if args.numerator is not None and args.positions is not None:
        past_n, past_d = _of_the_past(q_, i + args.positions[:, None], args)
        numerator, denominator = numerator + past_n, denominator + past_d
    out = Quotient.apply(numerator, denominator.clamp_min(args.eps).unsqueeze(-1)).flatten(2, 3).to(q.dtype)
    return out, *(_advance(k_, v, j, args) if args.return_state else (None, None))


def _windows(args: AttentionArgs) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Head by head: the same square with c(d) = cos((pi/2) d/W) for |d| < W and 0 beyond, over the keys that
    the head carries and those of the call; heads without a window as above."""
    assert args.windows is not None
    outs, sums, row, plain = [], [], 0, 0
    for head, window in enumerate(args.windows):
        mine = slice(head, head + 1)
        q = args.q[:, :, head * args.group : (head + 1) * args.group]
        k, v = args.k[:, :, mine], args.v[:, :, mine]
        if window == 0:
            given = {}
            if args.numerator is not None and args.denominator is not None:
                given = {
                    "numerator": args.numerator[:, plain : plain + 1],
                    "denominator": args.denominator[:, plain : plain + 1],
                }
            out, *after = reference(args.but(q=q, k=k, v=v, key_mask=None, windows=None, **given))
            sums.append(after)
            plain += 1
        else:
            offset = args.query_offset
            if args.past_keys is not None and args.past_values is not None:
                past = slice(row, row + window - 1)
                k = torch.cat((args.past_keys[:, past, None], k), 1)
                v = torch.cat((args.past_values[:, past, None], v), 1)
                offset += window - 1
            out = _window(q, k, v, window, args.causal, offset, args.eps)
            row += window - 1
        outs.append(out)
    out = torch.cat(outs, 2)
    if not args.return_state:
        return out, None, None
    if not sums:
        dtype = args.accum_dtype
        empty = args.q.new_zeros((args.q.shape[0], 0, 2, args.k.shape[3]), dtype=dtype)
        return out, args.q.new_zeros((*empty.shape, args.v.shape[3]), dtype=dtype), empty
    numerator, denominator = (torch.cat(x, 1) for x in zip(*sums, strict=True))
    return out, numerator, denominator


def _window(q: Tensor, k: Tensor, v: Tensor, window: int, causal: bool, offset: int, eps: float) -> Tensor:
    """q [B, Tq, G, D] against one key head k, v [B, Tk, 1, .]."""
    i = torch.arange(q.shape[1], device=q.device) + offset
    distance = i[:, None] - torch.arange(k.shape[1], device=q.device)
    sees = (distance.abs() < window) & ((distance >= 0) | (not causal))
    numerator, denominator = _sums(q.relu()[:, :, None], k.relu(), v, distance, sees, window)
    return Quotient.apply(numerator, denominator.clamp_min(eps).unsqueeze(-1)).flatten(2, 3).to(q.dtype)


def _sums(
    q_: Tensor, k_: Tensor, v: Tensor, distance: Tensor, sees: Tensor, m: float
) -> tuple[Tensor, Tensor]:
    """sum_j w_ij v_j (B, Tq, Hk, G, Dv) and sum_j w_ij (B, Tq, Hk, G), of q_ (B, Tq, Hk, G, D), over the j
    that i sees; what it does not see may be NaN."""
    cos = torch.cos(math.pi / 2 * distance.double() / m).to(q_.dtype)  # (Tq, Tk)
    q_, k_, v = q_.permute(0, 2, 3, 1, 4), k_.transpose(1, 2)[:, :, None], v.transpose(1, 2)[:, :, None]
    w = SeenScores.apply(q_, k_, sees) * cos  # (B, Hk, G, Tq, Tk)
    return SeenSum.apply(w, v, sees).permute(0, 3, 1, 2, 4), w.sum(-1).permute(0, 3, 1, 2)


def _turn(positions: Tensor, horizon: float, dtype: torch.dtype) -> Tensor:
    """[cos, sin] of (pi/2) i/M, (B, T, 2)."""
    theta = math.pi / 2 * positions.double() / horizon
    return torch.stack((theta.cos(), theta.sin()), -1).to(dtype)


def _of_the_past(q_: Tensor, i: Tensor, args: AttentionArgs) -> tuple[Tensor, Tensor]:
    """What the state adds: q'_i . (cos theta_i S_cos + sin theta_i S_sin)."""
    assert args.numerator is not None
    q_ = q_.to(args.numerator.dtype)
    turn = _turn(i, args.m, q_.dtype)  # (B, Tq, 2)
    numerator = torch.einsum("bihgd,bic,bhcde->bihge", q_, turn, args.numerator)
    return numerator, torch.einsum("bihgd,bic,bhcd->bihg", q_, turn, args.denominator)


def _advance(k_: Tensor, v: Tensor, j: Tensor, args: AttentionArgs) -> tuple[Tensor, Tensor]:
    """The recurrence written out, one position after another:
    S_j = S_{j-1} + [cos theta_j, sin theta_j] (x) k'_j (x) v_j, and z_j likewise without v_j."""
    assert args.positions is not None
    k_, v = k_.to(args.accum_dtype), v.to(args.accum_dtype)
    numerator, denominator = args.numerator, args.denominator
    if numerator is None or denominator is None:
        denominator = k_.new_zeros((k_.shape[0], k_.shape[2], 2, k_.shape[3]))
        numerator = k_.new_zeros((*denominator.shape, v.shape[3]))
    turn = _turn(j + args.positions[:, None], args.m, args.accum_dtype)  # (B, Tk, 2)
    features = torch.einsum("btc,bthd->bthcd", turn, k_)
    products = torch.einsum("bthcd,bthe->bthcde", features, v)
    for feature, product in zip(features.unbind(1), products.unbind(1), strict=True):
        numerator, denominator = numerator + product, denominator + feature
    return numerator, denominator


def _documents(args: AttentionArgs) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Each document by itself, then side by side again."""
    assert args.cu_seqlens is not None
    bounds = args.cu_seqlens.tolist()
    states = ("numerator", "denominator", "positions", "past_keys", "past_values")
    found = []
    for n in range(len(bounds) - 1):
        part, row = slice(bounds[n], bounds[n + 1]), slice(n, n + 1)
        mine = {name: None if getattr(args, name) is None else getattr(args, name)[row] for name in states}
        alone = args.but(
            q=args.q[:, part], k=args.k[:, part], v=args.v[:, part], cu_seqlens=None, query_offset=0, **mine
        )
        found.append(reference(alone))
    outs, numerators, denominators = zip(*found, strict=True)
    if not args.return_state:
        return torch.cat(outs, 1), None, None
    return torch.cat(outs, 1), torch.cat(numerators), torch.cat(denominators)
