"""The paper's equation as it stands: quadratic, plain PyTorch, the judge of everything else.

    o_i = sum_j w_ij v_j / max(sum_j w_ij, eps),
    w_ij = (ReLU(q_i) . ReLU(k_j)) cos((pi/2)(i - j)/M)          (Eq. 10 of the paper, kept whole)

over the keys j that query i may see: those not masked, of its own document, and j <= i if causal.
Arithmetic is done in the inputs' own type, whatever it is; gradients come from autograd.
"""

import math

import torch
from torch import Tensor

from cosformer.ops.state import CosformerState


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    horizon: float,
    key_mask: Tensor | None,
    query_offset: int,
    cu_seqlens: Tensor | None,
    eps: float,
    state: CosformerState | None,
    return_state: bool,
) -> tuple[Tensor, CosformerState | None]:
    """o [B, Tq, H, Dv] and the outgoing state; arguments as `cosformer_attention`, all given."""
    if cu_seqlens is not None:
        return _documents(q, k, v, cu_seqlens, causal, horizon, eps, state, return_state)
    if key_mask is not None:
        hidden = ~key_mask[:, :, None, None]
        k, v = k.masked_fill(hidden, 0), v.masked_fill(hidden, 0)
    q_, k_ = q.relu(), k.relu()
    i = torch.arange(q.shape[1], device=q.device) + query_offset
    j = torch.arange(k.shape[1], device=q.device)
    distance = i[:, None] - j[None, :]
    cos = torch.cos(math.pi / 2 * distance.double() / horizon).to(q.dtype)  # (Tq, Tk)
    if causal:
        cos = cos.masked_fill(distance < 0, 0)

    groups = q.shape[2] // k.shape[2]
    q_ = q_.unflatten(2, (k.shape[2], groups))  # (B, Tq, Hk, G, D)
    w = torch.einsum("bihgd,bjhd->bhgij", q_, k_) * cos
    numerator = torch.einsum("bhgij,bjhe->bihge", w, v)
    denominator = w.sum(-1).permute(0, 3, 1, 2)  # (B, Tq, Hk, G)

    if state is not None:
        past_n, past_d = _of_the_past(q_, i + state.positions[:, None], horizon, state)
        numerator, denominator = numerator + past_n, denominator + past_d
    out = (numerator / denominator.clamp_min(eps).unsqueeze(-1)).flatten(2, 3).to(q.dtype)
    return out, _advance(k_, v, j, horizon, state) if return_state else None


def _turn(positions: Tensor, horizon: float, dtype: torch.dtype) -> Tensor:
    """[cos, sin] of (pi/2) i/M, (B, T, 2)."""
    theta = math.pi / 2 * positions.double() / horizon
    return torch.stack((theta.cos(), theta.sin()), -1).to(dtype)


def _of_the_past(q_: Tensor, i: Tensor, horizon: float, state: CosformerState) -> tuple[Tensor, Tensor]:
    """What the state adds: q'_i . (cos theta_i S_cos + sin theta_i S_sin)."""
    q_ = q_.to(state.numerator.dtype)
    turn = _turn(i, horizon, q_.dtype)  # (B, Tq, 2)
    numerator = torch.einsum("bihgd,bic,bhcde->bihge", q_, turn, state.numerator)
    return numerator, torch.einsum("bihgd,bic,bhcd->bihg", q_, turn, state.denominator)


def _advance(
    k_: Tensor, v: Tensor, j: Tensor, horizon: float, state: CosformerState | None
) -> CosformerState:
    """The recurrence written out, one position after another:
    S_j = S_{j-1} + [cos theta_j, sin theta_j] (x) k'_j (x) v_j, and z_j likewise without v_j."""
    wide = torch.promote_types(k_.dtype, torch.float32)
    k_, v = k_.to(wide), v.to(wide)
    if state is None:
        state = CosformerState.zeros(
            k_.shape[0], k_.shape[2], k_.shape[3], v.shape[3], horizon=horizon, device=v.device, dtype=wide
        )
    numerator, denominator, seen = state.numerator, state.denominator, state.positions
    turn = _turn(j + seen[:, None], horizon, wide)  # (B, Tk, 2)
    features = torch.einsum("btc,bthd->bthcd", turn, k_)
    products = torch.einsum("bthcd,bthe->bthcde", features, v)
    for feature, product in zip(features.unbind(1), products.unbind(1), strict=True):
        numerator, denominator = numerator + product, denominator + feature
    return CosformerState(numerator, denominator, seen + len(j), state.seen + len(j), horizon)


def _documents(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    causal: bool,
    horizon: float,
    eps: float,
    state: CosformerState | None,
    return_state: bool,
) -> tuple[Tensor, CosformerState | None]:
    """Each document by itself, then side by side again."""
    bounds = cu_seqlens.tolist()
    outs, states = [], []
    for n in range(len(bounds) - 1):
        part = slice(bounds[n], bounds[n + 1])
        came = None if state is None else state.select(torch.tensor([n]))
        out, after = reference(
            q[:, part], k[:, part], v[:, part], causal=causal, horizon=horizon, key_mask=None, query_offset=0,
            cu_seqlens=None, eps=eps, state=came, return_state=return_state,
        )  # fmt: skip
        outs.append(out)
        states.append(after)
    if not return_state:
        return torch.cat(outs, 1), None
    numerator, denominator, positions = (
        torch.cat([getattr(s, name) for s in states]) for name in ("numerator", "denominator", "positions")
    )
    merged = CosformerState(numerator, denominator, positions, int(positions.max()), horizon)
    return torch.cat(outs, 1), merged
