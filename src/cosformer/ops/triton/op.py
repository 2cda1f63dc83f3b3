"""The Triton kernels as an op of the library."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from cosformer.ops.custom_op import Results, Shape, define
from cosformer.ops.triton import run
from cosformer.ops.triton.carried import State
from cosformer.ops.triton.padding import padded, widen
from cosformer.ops.triton.pieces import states_to_keep


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    numerator: Tensor | None,
    denominator: Tensor | None,
    positions: Tensor | None,
    causal: bool,
    offset: int,
    horizon: float,
    eps: float,
    need_state: bool,
    keep: bool,
) -> Results:
    dim, value_dim = k.shape[3], v.shape[3]
    d_wide, dv_wide = padded(dim, q.dtype), padded(value_dim, q.dtype)
    if (d_wide, dv_wide) != (dim, value_dim):
        made: Any = _forward(
            widen(q, d_wide), widen(k, d_wide), widen(v, dv_wide), key_mask, cu_seqlens,
            widen(numerator, dv_wide, d_wide), widen(denominator, d_wide), positions, causal, offset, horizon,
            eps, need_state, keep,
        )  # fmt: skip
        out, d, kept, *after = made
        return out[..., :value_dim].contiguous(), d, kept, *_narrowed(after, dim, value_dim)
    with _device(q):
        came = State.given(numerator, denominator)
        out, d, state, kept = run.forward(
            q, k, v, key_mask, cu_seqlens, came, positions, causal, offset, horizon, eps, need_state, keep
        )
        keeps = keep and not causal
        if (need_state or keeps) and (
            state is None or (came is not None and state.s is came.s)
        ):  # no key: what came in goes out
            state = _copy(state, q, k, v, cu_seqlens)
        if state is not None and keeps:
            kept = state.s if state.s.dim() == 3 else torch.cat((state.s.flatten(2), state.z.flatten(2)), -1)
        if not need_state or state is None:
            return out, d, kept, None, None
        return out, d, kept, *_public(state, k, v)


def _backward(
    grad: Tensor,
    grad_numerator: Tensor | None,
    grad_denominator: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    den: Tensor,
    kept: Tensor | None,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    numerator: Tensor | None,
    denominator: Tensor | None,
    positions: Tensor | None,
    causal: bool,
    offset: int,
    horizon: float,
    eps: float,
) -> Results:
    dim, value_dim = k.shape[3], v.shape[3]
    d_wide, dv_wide = padded(dim, q.dtype), padded(value_dim, q.dtype)
    if (d_wide, dv_wide) != (dim, value_dim):
        made: Any = _backward(
            widen(grad, dv_wide), widen(grad_numerator, dv_wide, d_wide), widen(grad_denominator, d_wide),
            widen(q, d_wide), widen(k, d_wide), widen(v, dv_wide), widen(out, dv_wide), den, kept, key_mask,
            cu_seqlens, widen(numerator, dv_wide, d_wide), widen(denominator, d_wide), positions, causal,
            offset, horizon, eps,
        )  # fmt: skip
        dq, dk, dv = (x[..., :n].contiguous() for x, n in zip(made, (dim, dim, value_dim), strict=False))
        return dq, dk, dv, *_narrowed(made[3:], dim, value_dim)
    with _device(q):
        back = State.given(grad_numerator, grad_denominator)
        if kept is not None and kept.numel() == 0:
            kept = None
        dq, dk, dv, r = run.backward(
            grad, back, q, k, v, out, den, kept, key_mask, cu_seqlens,
            State.given(numerator, denominator), positions, causal, offset, horizon, eps,
        )  # fmt: skip
        if numerator is None:
            return dq, dk, dv, None, None
        if r is None or (back is not None and r.s is back.s):  # no query: what came back goes on
            r = _copy(r, q, k, v, cu_seqlens)
        return dq, dk, dv, *_public(r, k, v)


def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    numerator: Tensor,
    denominator: Tensor,
    positions: Tensor,
    horizon: float,
    eps: float,
) -> Tensor:
    """One token a row; the state is overwritten. Gives o."""
    if not (numerator.is_contiguous() and denominator.is_contiguous()):
        raise ValueError("a state that is updated in place must be contiguous; call state.clone() first.")
    with _device(q):
        state = State.of(numerator, denominator)
        return run.step(q, k, v, key_mask, state, positions, horizon, eps)


def _shapes(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor | None, causal: bool, offset: int, states: bool,
    keep: bool,
) -> tuple[Shape, Shape]:  # fmt: skip
    batch, tq, heads, _ = q.shape
    rows = batch if cu_seqlens is None else cu_seqlens.shape[0] - 1
    d, dv = padded(k.shape[3], q.dtype), padded(v.shape[3], q.dtype)
    kept = 0
    if keep and not causal:
        kept = rows
    elif keep and cu_seqlens is None and offset == 0 and k.shape[1] == tq:
        kept = states_to_keep(rows, tq, heads, q.device)
    return (batch, heads, tq), (kept, k.shape[2], 2 * d * (dv + 1)) if kept else (0,)


def _device(x: Tensor) -> torch.cuda.device | nullcontext[None]:
    """Kernels start on the current device: make that the tensors' own."""
    if not x.is_cuda or x.get_device() == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(x.device)


def _copy(state: State | None, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor | None) -> State:
    if state is not None:
        return State.of(state.s.clone(), state.z.clone())
    rows = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    shape = (rows, k.shape[2], 2, k.shape[3], v.shape[3])
    s, z = (torch.zeros(n, dtype=torch.float32, device=q.device) for n in (shape, shape[:-1]))
    return State.of(s, z)


def _narrowed(state: Any, d: int, dv: int) -> Any:
    """The two tensors of a CosformerState, or none, without padding."""
    numerator, denominator = state
    if numerator is None:
        return state
    return [numerator[..., :d, :dv].contiguous(), denominator[..., :d].contiguous()]


def _public(state: State, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The two tensors of a CosformerState."""
    d, dv = k.shape[3], v.shape[3]
    if state.s.dim() == 5:
        return state.s, state.z
    s, z = state.s.split((2 * d * dv, 2 * d), -1)
    return s.unflatten(-1, (2, d, dv)).contiguous(), z.unflatten(-1, (2, d)).contiguous()


triton_attention, triton_forward, triton_backward = define("triton", _forward, _backward, _shapes)
