"""The operator as `torch.library` ops: opaque to torch.compile and torch.export, with fake
implementations for their shapes, and gradients and vmap registered. Every fast backend is one pair of
such ops; their arguments are the fields of `AttentionArgs`, flattened here and nowhere else.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef

from cosformer.ops.angles import length_or
from cosformer.ops.args import FIELDS, NAMES, TENSORS, AttentionArgs, schema
from cosformer.ops.checks import PLAIN

Shape = tuple[int, ...]
Results = tuple[Tensor | None, ...]  # None for an empty one


class Forward(NamedTuple):
    """out [B, Tq, H, Dv]; the denominators before eps, in the backend's own layout; what is kept for the
    backward; the outgoing sums of the heads without a window."""

    out: Tensor
    den: Tensor
    kept: Tensor | None
    numerator: Tensor | None
    denominator: Tensor | None


class Saved(NamedTuple):
    """What a forward saves for its backward; `kept`: what the backend wants again, say states of splits."""

    out: Tensor
    den: Tensor
    kept: Tensor | None


class Upstream(NamedTuple):
    """The incoming gradients: of o and, where the loss depends on it, of the final state S and z."""

    out: Tensor
    numerator: Tensor | None
    denominator: Tensor | None


class Gradients(NamedTuple):
    """Of q, k, v and, where they were given, of the initial state S and z and of the past keys and values."""

    q: Tensor
    k: Tensor
    v: Tensor
    numerator: Tensor | None
    denominator: Tensor | None
    past_keys: Tensor | None = None
    past_values: Tensor | None = None


class Backend(Protocol):
    def forward(self, args: AttentionArgs) -> Forward: ...
    def backward(self, args: AttentionArgs, saved: Saved, upstream: Upstream) -> Gradients: ...
    def shapes(self, args: AttentionArgs) -> tuple[Shape, Shape]:
        """Of the denominators, and of what is kept for the backward."""
        ...


# The backward op's own arguments come before those of the forward.
_BACKWARD = (
    "Tensor grad, Tensor? grad_numerator, Tensor? grad_denominator, Tensor out, Tensor den, Tensor? kept"
)
_OWN = len(_BACKWARD.split(","))
_DIFFERENTIABLE = ("q", "k", "v", "numerator", "denominator", "past_keys", "past_values")


def define(
    name: str, backend: Backend
) -> tuple[Callable[[AttentionArgs], Results], CustomOpDef, CustomOpDef]:
    """Registers `cosformer::{name}_forward` and `cosformer::{name}_backward`; returns the function that
    computes them, by the ops or, in eager mode, without, differentiable wherever it is called from; and the
    two ops."""

    def run_forward(*inputs: Any) -> Results:
        return without_autocast(backend.forward, AttentionArgs.unflatten(inputs))

    def run_backward(*inputs: Any) -> Results:
        grad, gn, gd, out, den, kept, *rest = inputs
        kept = None if kept is None or kept.numel() == 0 else kept
        saved, upstream = Saved(out, den, kept), Upstream(grad, gn, gd)
        return without_autocast(backend.backward, AttentionArgs.unflatten(rest), saved, upstream)

    @torch.library.custom_op(
        f"cosformer::{name}_forward",
        mutates_args=(),
        schema=f"({schema()}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    )
    def forward_op(*inputs: Any) -> Results:
        """The fields of `Forward`, empty tensors for None."""
        return _filled(run_forward(*inputs), inputs[0])

    @forward_op.register_fake
    def _(*inputs: Any) -> Results:
        args = AttentionArgs.unflatten(inputs)
        q, k, v = args.q, args.k, args.v
        of_den, of_kept = backend.shapes(args)
        out = q.new_empty((*q.shape[:-1], v.shape[3]))
        den = q.new_empty(of_den, dtype=args.accum_dtype)
        kept = den.new_empty(of_kept)
        if not args.return_state:
            return out, den, kept, den.new_empty((0,)), den.new_empty((0,))
        plain = k.shape[2] if args.windows is None else args.windows.count(0)
        shape = (args.rows, plain, 2, k.shape[3])
        return out, den, kept, den.new_empty((*shape, v.shape[3])), den.new_empty(shape)

    @torch.library.custom_op(
        f"cosformer::{name}_backward",
        mutates_args=(),
        schema=f"({_BACKWARD}, {schema()}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    )
    def backward_op(*inputs: Any) -> Results:
        """The fields of `Gradients`, empty tensors for None."""
        return _filled(run_backward(*inputs), inputs[_OWN])

    @backward_op.register_fake
    def _(*inputs: Any) -> Results:
        args, den = AttentionArgs.unflatten(inputs[_OWN:]), inputs[4]
        given = (getattr(args, n) for n in _DIFFERENTIABLE)
        return tuple(den.new_empty((0,)) if x is None else torch.empty_like(x) for x in given)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
        out, den, kept, _, _ = output
        ctx.save_for_backward(*(inputs[i] for i in TENSORS), out, den, kept)
        ctx.settings = {f.name: x for f, x in zip(FIELDS, inputs, strict=True) if not isinstance(x, Tensor)}
        ctx.set_materialize_grads(False)  # the kept states have none, and they are large

    def gradient(
        ctx: Any, grad: Tensor | None, _den: Any, _kept: Any, gn: Tensor | None, gd: Tensor | None,
        eager: bool = False,
    ) -> tuple[Any, ...]:  # fmt: skip
        *tensors, out, den, kept = ctx.saved_tensors
        args = AttentionArgs(**ctx.settings | {NAMES[i]: x for i, x in zip(TENSORS, tensors, strict=True)})
        grad = torch.zeros_like(out) if grad is None else grad
        if gn is None and gd is not None:
            gn = gd.new_zeros((*gd.shape, args.v.shape[3]))
        if gd is None and gn is not None:
            gd = gn.new_zeros(gn.shape[:-1])
        if not args.return_state:
            gn = gd = None
        inputs = (grad, gn, gd, out, den, kept, *args.flatten())
        if eager:
            made = run_backward(*inputs)
        elif torch._C._are_functorch_transforms_active():
            made = TransformableBackward.apply(*inputs)
        else:
            made = backward_op(*inputs)
        found = dict(zip(_DIFFERENTIABLE, made, strict=True))
        return tuple(found.get(n) if getattr(args, n) is not None else None for n in NAMES)

    def no_gradient(ctx: Any, *grads: Any) -> None:
        raise NotImplementedError("cosformer_attention has gradients, but no gradients of gradients.")

    forward_op.register_autograd(gradient, setup_context=setup_context)
    backward_op.register_autograd(no_gradient)

    class TransformableBackward(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*inputs: Any) -> Results:
            return backward_op(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
            pass

        backward = staticmethod(no_gradient)

    class Transformable(torch.autograd.Function):
        """The same op for torch.func: its transforms do not see gradients registered with an op."""

        generate_vmap_rule = True

        @staticmethod
        def forward(*inputs: Any) -> Results:
            return forward_op(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
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
            return tuple(output)  # autograd knows tuples alone

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            grad, den, kept, gn, gd = grads
            # Where the gradients shall have gradients, the op says that it has none.
            return gradient(ctx, grad, den, kept, gn, gd, eager=not torch.is_grad_enabled())

    def attention(args: AttentionArgs) -> Results:
        inputs = args.flatten()
        if torch._C._are_functorch_transforms_active():
            return Transformable.apply(*inputs)
        if is_traced(args.q, args.k, args.v):
            return forward_op(*inputs)
        return Eager.apply(*inputs) if args.keep else without_autocast(backend.forward, args)

    cu_seqlens = NAMES.index("cu_seqlens")
    forward_op.register_vmap(_vmap(forward_op, cu_seqlens))
    backward_op.register_vmap(_vmap(backward_op, _OWN + cu_seqlens))
    return attention, forward_op, backward_op


def is_traced(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether a compiler, a transform, a tracer, a mode or a tensor of another class has to see the op."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0:
        return True
    if torch._C._are_functorch_transforms_active():
        return True
    plain = type(q) in PLAIN and type(k) in PLAIN and type(v) in PLAIN and not q.is_meta
    return not plain or torch._C._len_torch_function_stack() > 0


def without_autocast(function: Callable[..., Any], args: AttentionArgs, *more: Any) -> Any:
    """function(args, *more) with the horizon filled in, and no cast inside."""
    if args.horizon is None:
        args = args.but(horizon=length_or(None, args.q, args.k))
    device = args.q.device.type
    if not torch.is_autocast_enabled(device):
        return function(args, *more)
    with torch.autocast(device, enabled=False):
        return function(args, *more)


def _filled(results: Results, q: Tensor) -> Results:
    """An op's results are tensors, empty ones where there are none."""
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    return tuple(q.new_empty((0,), dtype=dtype) if x is None else x for x in results)


def _vmap(op: Any, cu_seqlens: int) -> Any:
    """vmap adds rows to the batch, calls the op once, and takes them apart again. `cu_seqlens`: which
    argument that is."""

    def rule(info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[Any, Sequence[int]]:
        if args[cu_seqlens] is not None:
            raise NotImplementedError(
                "cosformer_attention: vmap does not go together with cu_seqlens; pack all documents "
                "into one row instead of mapping over rows."
            )
        n = info.batch_size

        def fold(x: Any, dim: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            x = x.expand(n, *x.shape) if dim is None else x.movedim(dim, 0)
            return x.flatten(0, 1)

        results = op(*(fold(x, d) for x, d in zip(args, in_dims, strict=False)))
        # One-dimensional outputs are empty: there was no state.
        unfolded = [y.unflatten(0, (n, -1)) if y.dim() > 1 else y.expand(n, *y.shape) for y in results]
        return tuple(unfolded), (0,) * len(unfolded)

    return rule
