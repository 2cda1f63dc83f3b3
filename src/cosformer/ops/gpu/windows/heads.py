"""A GPU backend for heads with and without windows: as one launch plan where it can be (one_plan.py), else
the backend's own kernels for heads without a window and the portable ones (launch.py) for the others."""

from typing import Protocol

import torch
from torch import Tensor

from cosformer.ops.args import AttentionArgs
from cosformer.ops.autograd import Forward, Gradients, Saved, Shape, Upstream
from cosformer.ops.gpu.launch_cache import Replay, on_device
from cosformer.ops.gpu.windows import launch, one_plan
from cosformer.ops.windowed import Triple, WindowedBackend


class PlainKernels(one_plan.PlainKernels, Protocol):
    """A backend for calls without windows, which can write its results `into` tensors that are given,
    whatever their layout, where it `writes_views`."""

    def forward(self, args: AttentionArgs, into: Tensor | None = None) -> Forward: ...
    def backward(
        self, args: AttentionArgs, saved: Saved, upstream: Upstream, into: Triple | None = None
    ) -> Gradients: ...
    def shapes(self, args: AttentionArgs) -> tuple[Shape, Shape]: ...
    def replay(self, args: AttentionArgs) -> Replay | None: ...


class GpuBackend:
    """`plain` computes calls without windows, as they are; denominators are [B, H, Tq]."""

    heads_at = 1

    def __init__(self, plain: PlainKernels):
        self.plain = plain
        self._windowed = WindowedBackend(self)

    def forward(self, args: AttentionArgs) -> Forward:
        with on_device(args.q):
            if args.windows is None:
                return self.plain.forward(args)
            if one_plan.is_one_plan(args, self.plain):
                return one_plan.forward(args, self.plain, table_of(args))
            return self._windowed.forward(args)

    def backward(self, args: AttentionArgs, saved: Saved, upstream: Upstream) -> Gradients:
        with on_device(args.q):
            if args.windows is None:
                return self.plain.backward(args, saved, upstream)
            if one_plan.is_one_plan(args, self.plain):
                return one_plan.backward(args, saved, upstream.out, self.plain, table_of(args))
            return self._windowed.backward(args, saved, upstream)

    def replay(self, args: AttentionArgs) -> Replay | None:
        """The plan of a call that was served as a function of q, k and v (launch_cache.py)."""
        if args.windows is None:
            return self.plain.replay(args)
        if one_plan.is_one_plan(args, self.plain):
            return one_plan.replay(args, self.plain, table_of(args))
        return None

    def shapes(self, args: AttentionArgs) -> tuple[Shape, Shape]:
        return self.plain.shapes(args) if args.windows is None else self._windowed.shapes(args)

    def plain_shapes(self, args: AttentionArgs) -> tuple[Shape, Shape]:
        return self.plain.shapes(args)

    def plain_forward(
        self, args: AttentionArgs, out: Tensor, den: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        given = self.plain.writes_views(args)
        made = self.plain.forward(args, out if given else None)
        if not given:
            out.copy_(made.out)
        den.copy_(made.den)
        return made.kept, made.numerator, made.denominator

    def plain_backward(
        self, args: AttentionArgs, saved: Saved, upstream: Upstream, into: Triple
    ) -> tuple[Tensor | None, Tensor | None]:
        given = self.plain.writes_views(args)
        saved = saved._replace(den=saved.den.contiguous())
        made = self.plain.backward(args, saved, upstream, into if given else None)
        if not given:
            for to, gradient in zip(into, made[:3], strict=True):
                to.copy_(gradient)
        return made.numerator, made.denominator

    def window_forward(self, args: AttentionArgs, out: Tensor, den: Tensor) -> None:
        launch.forward(
            args.q, args.k, args.v, out, den, table_of(args), args.key_mask, args.cu_seqlens, args.causal,
            args.query_offset, args.eps,
        )  # fmt: skip

    def window_backward(self, args: AttentionArgs, saved: Saved, grad: Tensor, into: Triple) -> None:
        launch.backward(
            grad, args.q, args.k, args.v, saved.out, saved.den, *into, table_of(args), args.key_mask,
            args.cu_seqlens, args.causal, args.query_offset, args.eps,
        )  # fmt: skip


def table_of(args: AttentionArgs) -> launch.WindowTable:
    assert args.windows is not None
    device = args.q.device
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return launch.window_table(args.windows, device)
