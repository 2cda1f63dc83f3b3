"""The operator as `torch.library` ops: opaque to torch.compile and torch.export, with fake
implementations for their shapes, and gradients and vmap registered. Every fast backend is one pair of
such ops, with the same arguments.

A state travels as the two tensors of CosformerState.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef
from torch.nn import Parameter

from cosformer.ops.angles import length_or

Outputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
Results = tuple[Tensor | None, ...]  # None for an empty one
Shape = tuple[int, ...]
PLAIN = (Tensor, Parameter)


def define(
    name: str,
    forward: Callable[..., Results],
    backward: Callable[..., Results],
    shapes: Callable[[Tensor, Tensor, Tensor, Tensor | None, bool, int, bool, bool], tuple[Shape, Shape]],
) -> tuple[Callable[..., Results], CustomOpDef, CustomOpDef]:
    """Registers `cosformer::{name}_forward` and `cosformer::{name}_backward`; returns the function that
    calls them, differentiable wherever it is called from, and the two ops.

    `forward` and `backward` take the arguments of the ops below; `shapes`(q, k, v, cu_seqlens, causal,
    offset, states, keep) are those of the denominator and of what is kept for the backward; `states`: whether
    any come or go.
    """

    def run_forward(*inputs: Any) -> Results:
        return _exactly(forward, inputs, q=0, horizon=10)

    def run_backward(*inputs: Any) -> Results:
        return _exactly(backward, inputs, q=3, horizon=16)

    @torch.library.custom_op(f"cosformer::{name}_forward", mutates_args=())
    def forward_op(
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
        horizon: float | None,
        eps: float,
        need_state: bool,
        keep: bool,
    ) -> Outputs:
        """out, d, what is kept for the backward (nothing unless asked), and the outgoing numerator and
        denominator (empty unless needed)."""
        return _filled(run_forward(
            q, k, v, key_mask, cu_seqlens, numerator, denominator, positions, causal, offset, horizon, eps,
            need_state, keep,
        ), q)  # fmt: skip

    @forward_op.register_fake
    def _(
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
        horizon: float | None,
        eps: float,
        need_state: bool,
        keep: bool,
    ) -> Outputs:
        states = need_state or numerator is not None
        of_den, of_kept = shapes(q, k, v, cu_seqlens, causal, offset, states, keep)
        out = q.new_empty((*q.shape[:-1], v.shape[3]))
        den = q.new_empty(of_den, dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)
        kept = den.new_empty(of_kept)
        if not need_state:
            return out, den, kept, den.new_empty((0,)), den.new_empty((0,))
        rows = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        shape = (rows, k.shape[2], 2, k.shape[3])
        return out, den, kept, den.new_empty((*shape, v.shape[3])), den.new_empty(shape)

    @torch.library.custom_op(f"cosformer::{name}_backward", mutates_args=())
    def backward_op(
        grad: Tensor,
        grad_numerator: Tensor | None,
        grad_denominator: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        den: Tensor,
        kept: Tensor,
        key_mask: Tensor | None,
        cu_seqlens: Tensor | None,
        numerator: Tensor | None,
        denominator: Tensor | None,
        positions: Tensor | None,
        causal: bool,
        offset: int,
        horizon: float | None,
        eps: float,
    ) -> Outputs:
        """The gradients of q, k, v and of the incoming numerator and denominator (empty without them)."""
        return _filled(run_backward(
            grad, grad_numerator, grad_denominator, q, k, v, out, den, kept, key_mask, cu_seqlens, numerator,
            denominator, positions, causal, offset, horizon, eps,
        ), q)  # fmt: skip

    @backward_op.register_fake
    def _(
        grad: Tensor,
        grad_numerator: Tensor | None,
        grad_denominator: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        den: Tensor,
        kept: Tensor,
        key_mask: Tensor | None,
        cu_seqlens: Tensor | None,
        numerator: Tensor | None,
        denominator: Tensor | None,
        positions: Tensor | None,
        causal: bool,
        offset: int,
        horizon: float | None,
        eps: float,
    ) -> Outputs:
        dn, dd = (den.new_empty((0,) if x is None else x.shape) for x in (numerator, denominator))
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), dn, dd

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
        *tensors, causal, offset, horizon, eps, need_state, _ = inputs
        out, den, kept, _, _ = output
        ctx.save_for_backward(*tensors, out, den, kept)
        ctx.settings = (causal, offset, horizon, eps)
        ctx.need_state = need_state
        ctx.set_materialize_grads(False)  # the kept states have none, and they are large

    def gradient(
        ctx: Any, grad: Tensor | None, _den: Any, _kept: Any, gn: Tensor | None, gd: Tensor | None,
        eager: bool = False,
    ) -> tuple[Any, ...]:  # fmt: skip
        q, k, v, key_mask, cu_seqlens, numerator, denominator, positions, out, den, kept = ctx.saved_tensors
        grad = torch.zeros_like(out) if grad is None else grad
        if gn is None and gd is not None:
            gn = gd.new_zeros((*gd.shape, v.shape[3]))
        if gd is None and gn is not None:
            gd = gn.new_zeros(gn.shape[:-1])
        inputs = (
            grad, gn if ctx.need_state else None, gd if ctx.need_state else None, q, k, v, out, den, kept,
            key_mask, cu_seqlens, numerator, denominator, positions, *ctx.settings,
        )  # fmt: skip
        if eager:
            dq, dk, dv, dn, dd = run_backward(*inputs)
        elif torch._C._are_functorch_transforms_active():
            dq, dk, dv, dn, dd = TransformableBackward.apply(*inputs)
        else:
            dq, dk, dv, dn, dd = backward_op(*inputs)
        if numerator is None:
            dn = dd = None
        return dq, dk, dv, None, None, dn, dd, *[None] * 7

    forward_op.register_autograd(gradient, setup_context=setup_context)

    class TransformableBackward(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*inputs: Any) -> Outputs:
            return backward_op(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> None:
            raise NotImplementedError(f"cosformer_attention has no second derivatives ({name}_backward).")

    class Transformable(torch.autograd.Function):
        """The same op for torch.func: its transforms do not see gradients registered with an op."""

        generate_vmap_rule = True

        @staticmethod
        def forward(*inputs: Any) -> Outputs:
            return forward_op(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
            setup_context(ctx, inputs, output)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            return gradient(ctx, *grads)

    class Eager(torch.autograd.Function):
        """The same without the library's dispatch, which takes longer than a short sequence."""

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Results:
            output = run_forward(*inputs)
            setup_context(ctx, inputs, output)
            ctx.mark_non_differentiable(*(x for x in output[1:3] if x is not None))
            return output

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            grad, den, kept, gn, gd = grads
            # Where the gradients shall have gradients, the op says that it has none.
            return gradient(ctx, grad, den, kept, gn, gd, eager=not torch.is_grad_enabled())

    def attention(*inputs: Any) -> Results:
        if torch._C._are_functorch_transforms_active():
            return Transformable.apply(*inputs)
        if somebody_watches(inputs):
            return forward_op(*inputs)
        return Eager.apply(*inputs) if inputs[-1] else run_forward(*inputs)

    forward_op.register_vmap(_vmap(forward_op, tensors=8, cu_seqlens=4))
    backward_op.register_vmap(_vmap(backward_op, tensors=14, cu_seqlens=10))
    return attention, forward_op, backward_op


def somebody_watches(inputs: tuple[Any, ...]) -> bool:
    """Whether a compiler, a transform, a tracer, a mode or a tensor of another class has to see the op."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0:
        return True
    if torch._C._are_functorch_transforms_active():
        return True
    q, k, v, *_ = inputs
    plain = type(q) in PLAIN and type(k) in PLAIN and type(v) in PLAIN and not q.is_meta
    return not plain or torch._C._len_torch_function_stack() > 0


def _exactly(function: Callable[..., Results], inputs: tuple[Any, ...], q: int, horizon: int) -> Results:
    """`function` of the arguments of an op, with the horizon filled in, and without autocast. `q` and
    `horizon`: which arguments these are; k follows q."""
    m = length_or(inputs[horizon], inputs[q], inputs[q + 1])
    inputs = (*inputs[:horizon], m, *inputs[horizon + 1 :])
    device = inputs[q].device.type
    if not torch.is_autocast_enabled(device):
        return function(*inputs)
    with torch.autocast(device, enabled=False):
        return function(*inputs)


def _filled(results: Results, q: Tensor) -> Outputs:
    """An op's results are tensors, empty ones where there are none."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return tuple(q.new_empty((0,), dtype=wide) if x is None else x for x in results)  # type: ignore[return-value]


def _vmap(op: Any, tensors: int, cu_seqlens: int) -> Any:
    """vmap adds rows to the batch, calls the op once, and takes them apart again.

    `tensors`: how many leading arguments are tensors; `cu_seqlens`: which of them is that one.
    """

    def rule(info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[Any, Sequence[int]]:
        if args[cu_seqlens] is not None:
            raise NotImplementedError(
                "cosformer_attention: vmap does not go together with cu_seqlens; pack all documents "
                "into one row instead of mapping over rows."
            )
        n = info.batch_size

        def fold(x: Any, dim: int | None) -> Any:
            if not isinstance(x, Tensor):
                return x
            x = x.expand(n, *x.shape) if dim is None else x.movedim(dim, 0)
            return x.flatten(0, 1)

        folded = [fold(x, d) for x, d in zip(args[:tensors], in_dims, strict=False)]
        results = op(*folded, *args[tensors:])
        # One-dimensional outputs are empty: there was no state.
        unfolded = [y.unflatten(0, (n, -1)) if y.dim() > 1 else y.expand(n, *y.shape) for y in results]
        return tuple(unfolded), (0,) * len(unfolded)

    return rule
