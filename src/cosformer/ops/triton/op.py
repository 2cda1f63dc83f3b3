"""The Triton kernels as an op of the library."""

from contextlib import nullcontext

import torch
from torch import Tensor

from cosformer.ops.args import AttentionArgs
from cosformer.ops.autograd import Forward, Gradients, Saved, Shape, Upstream, define
from cosformer.ops.triton import run
from cosformer.ops.triton.carried import State
from cosformer.ops.triton.padding import padded, widen
from cosformer.ops.triton.pieces import states_to_keep


class Triton:
    def forward(self, args: AttentionArgs) -> Forward:
        q, k, v = args.q, args.k, args.v
        dim, value_dim = k.shape[3], v.shape[3]
        if (padded(dim, q.dtype), padded(value_dim, q.dtype)) != (dim, value_dim):
            made = self.forward(_widened(args))
            sums = _narrowed(made.numerator, made.denominator, dim, value_dim)
            return Forward(made.out[..., :value_dim].contiguous(), made.den, made.kept, *sums)
        with _device(q):
            came = State.given(args.numerator, args.denominator)
            out, d, state, kept = run.forward(
                q, k, v, args.key_mask, args.cu_seqlens, came, args.positions, args.causal,
                args.query_offset, args.m, args.eps, args.return_state, args.keep,
            )  # fmt: skip
            keeps = args.keep and not args.causal
            if (args.return_state or keeps) and (
                state is None or (came is not None and state.s is came.s)
            ):  # no key: what came in goes out
                state = _copy(state, args)
            if state is not None and keeps:
                both = (state.s.flatten(2), state.z.flatten(2)) if state.s.dim() != 3 else None
                kept = state.s if both is None else torch.cat(both, -1)
            if not args.return_state or state is None:
                return Forward(out, d, kept, None, None)
            return Forward(out, d, kept, *_public(state, k, v))

    def backward(self, args: AttentionArgs, saved: Saved, upstream: Upstream) -> Gradients:
        q, k, v = args.q, args.k, args.v
        dim, value_dim = k.shape[3], v.shape[3]
        d_wide, dv_wide = padded(dim, q.dtype), padded(value_dim, q.dtype)
        if (d_wide, dv_wide) != (dim, value_dim):
            grads = Upstream(
                widen(upstream.out, dv_wide),
                widen(upstream.numerator, dv_wide, d_wide),
                widen(upstream.denominator, d_wide),
            )
            made = self.backward(_widened(args), saved._replace(out=widen(saved.out, dv_wide)), grads)
            sizes = (dim, dim, value_dim)
            dq, dk, dv = (x[..., :n].contiguous() for x, n in zip(made[:3], sizes, strict=True))
            return Gradients(dq, dk, dv, *_narrowed(made.numerator, made.denominator, dim, value_dim))
        with _device(q):
            back = State.given(upstream.numerator, upstream.denominator)
            dq, dk, dv, r = run.backward(
                upstream.out, back, q, k, v, saved.out, saved.den, saved.kept, args.key_mask,
                args.cu_seqlens, State.given(args.numerator, args.denominator), args.positions, args.causal,
                args.query_offset, args.m, args.eps,
            )  # fmt: skip
            if args.numerator is None:
                return Gradients(dq, dk, dv, None, None)
            if r is None or (back is not None and r.s is back.s):  # no query: what came back goes on
                r = _copy(r, args)
            return Gradients(dq, dk, dv, *_public(r, k, v))

    def shapes(self, args: AttentionArgs) -> tuple[Shape, Shape]:
        q, k, v = args.q, args.k, args.v
        batch, tq, heads, _ = q.shape
        d, dv = padded(k.shape[3], q.dtype), padded(v.shape[3], q.dtype)
        kept = 0
        if args.keep and not args.causal:
            kept = args.rows
        elif args.keep and args.cu_seqlens is None and args.query_offset == 0 and k.shape[1] == tq:
            kept = states_to_keep(args.rows, tq, heads, q.device)
        return (batch, heads, tq), (kept, k.shape[2], 2 * d * (dv + 1)) if kept else (0,)


def _widened(args: AttentionArgs) -> AttentionArgs:
    """Heads filled up with zeros to sizes that the kernels take."""
    d, dv = padded(args.k.shape[3], args.q.dtype), padded(args.v.shape[3], args.q.dtype)
    return args.but(
        q=widen(args.q, d), k=widen(args.k, d), v=widen(args.v, dv),
        numerator=widen(args.numerator, dv, d), denominator=widen(args.denominator, d),
    )  # fmt: skip


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


def _device(x: Tensor) -> torch.cuda.device | nullcontext[None]:
    """Kernels start on the current device: make that the tensors' own."""
    if not x.is_cuda or x.get_device() == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(x.device)


def _copy(state: State | None, args: AttentionArgs) -> State:
    if state is not None:
        return State.of(state.s.clone(), state.z.clone())
    shape = (args.rows, args.k.shape[2], 2, args.k.shape[3], args.v.shape[3])
    s, z = (torch.zeros(n, dtype=torch.float32, device=args.q.device) for n in (shape, shape[:-1]))
    return State.of(s, z)


def _narrowed(
    numerator: Tensor | None, denominator: Tensor | None, d: int, dv: int
) -> tuple[Tensor | None, Tensor | None]:
    """The two tensors of a CosformerState, or none, without padding."""
    if numerator is None or denominator is None:
        return None, None
    return numerator[..., :d, :dv].contiguous(), denominator[..., :d].contiguous()


def _public(state: State, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The two tensors of a CosformerState."""
    d, dv = k.shape[3], v.shape[3]
    if state.s.dim() == 5:
        return state.s, state.z
    s, z = state.s.split((2 * d * dv, 2 * d), -1)
    return s.unflatten(-1, (2, d, dv)).contiguous(), z.unflatten(-1, (2, d)).contiguous()


triton_attention, triton_forward, triton_backward = define("triton", Triton())
