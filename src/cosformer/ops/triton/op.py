"""The Triton kernels as an op of the library."""

import torch
from torch import Tensor

from cosformer.ops.args import AttentionArgs
from cosformer.ops.autograd import Backend, Forward, Gradients, Saved, Shape, Upstream, define
from cosformer.ops.gpu.carried_state import State
from cosformer.ops.gpu.launch_cache import Replay
from cosformer.ops.gpu.launch_plan import LaunchPlan
from cosformer.ops.gpu.padding import padded, widen
from cosformer.ops.gpu.windows.heads import GpuBackend
from cosformer.ops.triton import run
from cosformer.ops.triton.partition import states_to_keep
from cosformer.ops.windowed import Triple


class Triton:
    """Calls without windows, whose heads have sizes that the kernels take."""

    plan_type = LaunchPlan

    def writes_views(self, args: AttentionArgs) -> bool:
        return True

    def forward(self, args: AttentionArgs, into: Tensor | None = None) -> Forward:
        q, k, v = args.q, args.k, args.v
        initial_state = State.given(args.numerator, args.denominator)
        out, d, state, kept = run.forward(
            q, k, v, args.key_mask, args.cu_seqlens, initial_state, args.positions, into, args.causal,
            args.query_offset, args.m, args.eps, args.return_state, args.keep,
        )  # fmt: skip
        keeps = args.keep and not args.causal
        if (args.return_state or keeps) and (
            state is None or (initial_state is not None and state.s is initial_state.s)
        ):  # no keys: the final state is the initial one
            state = _copy(state, args)
        if state is not None and keeps:
            both = (state.s.flatten(2), state.z.flatten(2)) if state.s.dim() != 3 else None
            kept = state.s if both is None else torch.cat(both, -1)
        if not args.return_state or state is None:
            return Forward(out, d, kept, None, None)
        return Forward(out, d, kept, *_public(state, k, v))

    def backward(
        self, args: AttentionArgs, saved: Saved, upstream: Upstream, into: Triple | None = None
    ) -> Gradients:
        q, k, v = args.q, args.k, args.v
        back = State.given(upstream.numerator, upstream.denominator)
        dq, dk, dv, r = run.backward(
            upstream.out, back, q, k, v, saved.out, saved.den, saved.kept, args.key_mask,
            args.cu_seqlens, State.given(args.numerator, args.denominator), args.positions, into,
            args.causal, args.query_offset, args.m, args.eps,
        )  # fmt: skip
        if args.numerator is None:
            return Gradients(dq, dk, dv, None, None)
        if r is None or (back is not None and r.s is back.s):  # no queries: the gradient passes through
            r = _copy(r, args)
        return Gradients(dq, dk, dv, *_public(r, k, v))

    def launch_forward(
        self, plan: LaunchPlan, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, out: Tensor,
        causal: bool, offset: int, horizon: float, eps: float, keep: bool,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        _, den, state, kept = run.launch_forward(
            plan, q, k, v, key_mask, None, None, None, None, out, causal, offset, horizon, eps, False, keep
        )
        return den, kept if causal or state is None else state.s

    def launch_backward(
        self, plan: LaunchPlan, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, den: Tensor,
        kept: Tensor | None, key_mask: Tensor | None, into: Triple, causal: bool, offset: int,
        horizon: float, eps: float,
    ) -> None:  # fmt: skip
        run.launch_backward(
            plan, grad, None, None, q, k, v, out, den, kept, key_mask, None, None, None, None, *into, causal,
            offset, horizon, eps,
        )  # fmt: skip

    def replay(self, args: AttentionArgs) -> Replay | None:
        return run.replay(args)

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


class Padded:
    """A backend for heads of any size: they are filled up with zeros to sizes that its kernels take, and what
    comes out is cut."""

    def __init__(self, backend: Backend):
        self.backend = backend

    def forward(self, args: AttentionArgs) -> Forward:
        (dim, value_dim), (d, dv) = _sizes(args)
        if (d, dv) == (dim, value_dim):
            return self.backend.forward(args)
        made = self.backend.forward(_widened(args, d, dv))
        sums = _narrowed(made.numerator, made.denominator, dim, value_dim)
        return Forward(made.out[..., :value_dim].contiguous(), made.den, made.kept, *sums)

    def backward(self, args: AttentionArgs, saved: Saved, upstream: Upstream) -> Gradients:
        (dim, value_dim), (d, dv) = _sizes(args)
        if (d, dv) == (dim, value_dim):
            return self.backend.backward(args, saved, upstream)
        grad, numerator, denominator = upstream
        wider = Upstream(widen(grad, dv), widen(numerator, dv, d), widen(denominator, d))
        made = self.backend.backward(_widened(args, d, dv), saved._replace(out=widen(saved.out, dv)), wider)
        return Gradients(
            made.q[..., :dim].contiguous(),
            made.k[..., :dim].contiguous(),
            made.v[..., :value_dim].contiguous(),
            *_narrowed(made.numerator, made.denominator, dim, value_dim),
            None if made.past_keys is None else made.past_keys[..., :dim].contiguous(),
            None if made.past_values is None else made.past_values[..., :value_dim].contiguous(),
        )

    def shapes(self, args: AttentionArgs) -> tuple[Shape, Shape]:
        return self.backend.shapes(args)


def _sizes(args: AttentionArgs) -> tuple[tuple[int, int], tuple[int, int]]:
    """D and Dv, and what the kernels take."""
    d, dv = args.k.shape[3], args.v.shape[3]
    return (d, dv), (padded(d, args.q.dtype), padded(dv, args.q.dtype))


def _widened(args: AttentionArgs, d: int, dv: int) -> AttentionArgs:
    return args.but(
        q=widen(args.q, d), k=widen(args.k, d), v=widen(args.v, dv),
        numerator=widen(args.numerator, dv, d), denominator=widen(args.denominator, d),
        past_keys=widen(args.past_keys, d), past_values=widen(args.past_values, dv),
    )  # fmt: skip


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


backend = GpuBackend(Triton())
triton_attention, triton_forward, triton_backward = define("triton", Padded(backend))
