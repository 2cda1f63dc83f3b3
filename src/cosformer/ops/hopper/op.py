"""The kernels for Hopper as an op of the library."""

from torch import Tensor

from cosformer.ops.args import AttentionArgs
from cosformer.ops.autograd import Forward, Gradients, Saved, Shape, Upstream, define
from cosformer.ops.gpu.launch_cache import Replay, cached_call
from cosformer.ops.gpu.launch_plan import LaunchPlan
from cosformer.ops.gpu.windows.heads import GpuBackend
from cosformer.ops.hopper import run
from cosformer.ops.hopper.launch_plan import HopperLaunchPlan
from cosformer.ops.hopper.partition import head_width, states_to_keep, tile_list_rows
from cosformer.ops.windowed import Triple


class Hopper:
    """Calls without windows."""

    plan_type: type[LaunchPlan] = HopperLaunchPlan

    def writes_views(self, args: AttentionArgs) -> bool:
        return run.writes_views(args.cu_seqlens, args.group)

    def forward(self, args: AttentionArgs, into: Tensor | None = None) -> Forward:
        q, k, v, cu_seqlens = args.q, args.k, args.v, args.cu_seqlens
        replayable = cu_seqlens is None or run.uses_tile_list(cu_seqlens, args.has_state)
        out, d, kept, state, z = cached_call(
            run.forward,
            (q, k, v, args.key_mask, cu_seqlens, args.numerator, args.denominator, args.positions, into),
            (args.causal, args.query_offset, args.m, args.eps, args.return_state, args.keep),
            replayable=replayable,
            plan_type=HopperLaunchPlan,
        )
        if not args.keep or not run.keeps_tensor(cu_seqlens, args.causal, args.has_state):
            kept = None
        if not args.return_state:
            return Forward(out, d, kept, None, None)
        return Forward(out, d, kept, *run.public_state(state, z, k.shape[3], v.shape[3]))

    def backward(
        self, args: AttentionArgs, saved: Saved, upstream: Upstream, into: Triple | None = None
    ) -> Gradients:
        q, k, v, cu_seqlens = args.q, args.k, args.v, args.cu_seqlens
        has_states = upstream.numerator is not None or args.numerator is not None
        use_tile_list = run.uses_tile_list(cu_seqlens, has_states)
        dq, dk, dv, state, z = cached_call(
            run.backward,
            (
                *upstream, q, k, v, *saved, args.key_mask, cu_seqlens, args.numerator, args.denominator,
                args.positions, *(into or (None, None, None)),
            ),
            (args.causal, args.query_offset, args.m, args.eps),
            replayable=cu_seqlens is None or use_tile_list,
            plan_type=HopperLaunchPlan,
        )  # fmt: skip
        if args.numerator is None:
            return Gradients(dq, dk, dv, None, None)
        return Gradients(dq, dk, dv, *run.public_state(state, z, k.shape[3], v.shape[3]))

    def launch_forward(
        self, plan: LaunchPlan, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, out: Tensor,
        causal: bool, offset: int, horizon: float, eps: float, keep: bool,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        assert isinstance(plan, HopperLaunchPlan)
        _, den, kept, _, _ = run.forward(
            plan, q, k, v, key_mask, None, None, None, None, out, causal, offset, horizon, eps, False, keep
        )
        assert den is not None
        return den, kept

    def launch_backward(
        self, plan: LaunchPlan, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, den: Tensor,
        kept: Tensor | None, key_mask: Tensor | None, into: Triple, causal: bool, offset: int,
        horizon: float, eps: float,
    ) -> None:  # fmt: skip
        assert isinstance(plan, HopperLaunchPlan)
        run.backward(
            plan, grad, None, None, q, k, v, out, den, kept, key_mask, None, None, None, None, *into, causal,
            offset, horizon, eps,
        )  # fmt: skip

    def replay(self, args: AttentionArgs) -> Replay | None:
        return run.replay(args)

    def shapes(self, args: AttentionArgs) -> tuple[Shape, Shape]:
        (batch, tq, heads, d), dv = args.q.shape, args.v.shape[3]
        of_d = (batch, heads, tq)
        if not args.keep or not run.keeps_tensor(args.cu_seqlens, args.causal, args.has_state):
            return of_d, (0,)
        if args.cu_seqlens is not None:
            return of_d, (tile_list_rows(tq, args.rows), 4)
        kept = batch
        if args.causal:
            kept = states_to_keep(batch, heads, tq, args.q.device, head_width(d, dv))
        return of_d, (kept, args.k.shape[2], 2 * d * (dv + 1)) if kept else (0,)


backend = GpuBackend(Hopper())
hopper_attention, hopper_forward, hopper_backward = define("hopper", backend)
