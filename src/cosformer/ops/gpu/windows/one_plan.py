"""A call with windows as one launch plan: heads without a window beside the others, in long calls on the side
stream.

Of calls without documents and states, whose heads without a window, if there are any, are neighbours and such
that the backend can write them in place: most of training and of inference. What is left over takes a plan
for each kind of heads (ops/windowed.py), with portable kernels for windows.
"""

from functools import cache
from typing import Protocol

from torch import Tensor

from cosformer.ops.angles import length_or
from cosformer.ops.args import AttentionArgs
from cosformer.ops.autograd import Forward, Gradients, Saved
from cosformer.ops.gpu.launch_cache import Replay, cached_call, replay_of
from cosformer.ops.gpu.launch_plan import LaunchPlan
from cosformer.ops.gpu.windows import launch
from cosformer.ops.gpu.windows.rows import copy_heads
from cosformer.ops.windowed import Triple
from cosformer.ops.windows import plain_heads

COPIED = 1024  # denominators that a program of copy_heads takes


class PlainKernels(Protocol):
    """A backend's kernels for heads without a window, as parts of a plan."""

    plan_type: type[LaunchPlan]

    def writes_views(self, args: AttentionArgs) -> bool: ...
    def launch_forward(
        self, plan: LaunchPlan, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, out: Tensor,
        causal: bool, offset: int, horizon: float, eps: float, keep: bool,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Writes `out`; returns the denominators [B, H, Tq], and what to keep."""
        ...

    def launch_backward(
        self, plan: LaunchPlan, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, den: Tensor,
        kept: Tensor | None, key_mask: Tensor | None, into: Triple, causal: bool, offset: int,
        horizon: float, eps: float,
    ) -> None: ...  # fmt: skip


def is_one_plan(args: AttentionArgs, plain: PlainKernels) -> bool:
    assert args.windows is not None
    groups = plain_heads(args.windows)
    return (
        args.cu_seqlens is None and args.past_keys is None and not args.has_state
        and 0 not in (*args.q.shape[:2], args.k.shape[1])
        and (not groups or (len(groups) == 1 and plain.writes_views(args)))
    )  # fmt: skip


def forward(args: AttentionArgs, plain: PlainKernels, table: launch.WindowTable) -> Forward:
    inputs = (*_with_parts(table, args.q, args.k, args.v), args.key_mask, table.narrow, table.wide)
    out, den, kept = cached_call(
        _forward, inputs, _settings(args, plain), replayable=True, plan_type=plain.plan_type
    )
    return Forward(out, den, kept, None, None)


def replay(args: AttentionArgs, plain: PlainKernels, table: launch.WindowTable) -> Replay | None:
    """The recorded plan of a forward without a mask as a function of q, k and v; None if there is none."""

    def inputs(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor | None, ...]:
        return *_with_parts(table, q, k, v), None, table.narrow, table.wide

    return replay_of(_forward, inputs, _settings(args, plain), args.q, args.k, args.v)


def backward(
    args: AttentionArgs, saved: Saved, grad: Tensor, plain: PlainKernels, table: launch.WindowTable
) -> Gradients:
    tensors = _with_parts(table, grad, args.q, args.k, args.v, saved.out)
    inputs = (*tensors, saved.den, saved.kept, args.key_mask, table.narrow, table.wide)
    dq, dk, dv = cached_call(
        _backward, inputs, _settings(args, plain), replayable=True, plan_type=plain.plan_type
    )
    return Gradients(dq, dk, dv, None, None)


def _settings(args: AttentionArgs, plain: PlainKernels) -> tuple[object, ...]:
    horizon = length_or(args.horizon, args.q, args.k)
    return plain, args.windows, args.causal, args.query_offset, horizon, args.eps, args.keep


def _with_parts(table: launch.WindowTable, *tensors: Tensor) -> tuple[Tensor | None, ...]:
    """Tensors [B, T, heads, ...], and of each the heads without a window, None where all have one. These are
    inputs of a plan, too: where q, k and v lie in one tensor, an address alone does not say whose it is."""
    return *tensors, *(_part(x, table.windows) for x in tensors)


def _part(x: Tensor, windows: tuple[int, ...]) -> Tensor | None:
    heads = _plain(windows)
    if heads is None:
        return None
    group = x.shape[2] // len(windows)
    return x.narrow(2, heads.start * group, (heads.stop - heads.start) * group)


@cache
def _plain(windows: tuple[int, ...]) -> slice | None:
    return next(iter(plain_heads(windows)), None)


def _forward(
    plan: LaunchPlan, q: Tensor, k: Tensor, v: Tensor, plain_q: Tensor | None, plain_k: Tensor | None,
    plain_v: Tensor | None, key_mask: Tensor | None, narrow: Tensor | None, wide: Tensor | None,
    plain: PlainKernels, windows: tuple[int, ...], causal: bool, offset: int, horizon: float, eps: float,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """o [B, Tq, H, Dv]; the denominators [B, H, Tq] before eps, those of heads without a window only to
    `keep`; and what else is kept."""
    out = plan.empty((*q.shape[:3], v.shape[3]), q.dtype)
    den = plan.empty((q.shape[0], q.shape[2], q.shape[1]))
    kept = None
    if plain_q is not None and plain_k is not None and plain_v is not None:
        with plan.aside(launch.is_long(q)):
            plain_den, kept = plain.launch_forward(
                plan, plain_q, plain_k, plain_v, key_mask, _view(out, windows), causal, offset, horizon, eps,
                keep,
            )  # fmt: skip
            if keep:
                _copy_heads(plan, plain_den, den, windows, to_all=True)
    launch.launch_forward(
        plan, q, k, v, out, den, key_mask, None, narrow, wide, windows, causal, offset, eps
    )  # fmt: skip
    return out, den, kept if keep else None


def _backward(
    plan: LaunchPlan, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, plain_grad: Tensor | None,
    plain_q: Tensor | None, plain_k: Tensor | None, plain_v: Tensor | None, plain_out: Tensor | None,
    den: Tensor, kept: Tensor | None, key_mask: Tensor | None, narrow: Tensor | None, wide: Tensor | None,
    plain: PlainKernels, windows: tuple[int, ...], causal: bool, offset: int,
    horizon: float, eps: float, keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dq, dk, dv = (plan.empty(tuple(x.shape), x.dtype) for x in (q, k, v))
    if (
        plain_grad is not None and plain_q is not None and plain_k is not None and plain_v is not None
        and plain_out is not None
    ):  # fmt: skip
        with plan.aside(launch.is_long(q)):
            plain_den = plan.empty((q.shape[0], plain_q.shape[2], q.shape[1]))
            _copy_heads(plan, plain_den, den, windows, to_all=False)
            parts = (_view(dq, windows), _view(dk, windows), _view(dv, windows))
            plain.launch_backward(
                plan, plain_grad, plain_q, plain_k, plain_v, plain_out, plain_den, kept, key_mask, parts,
                causal, offset, horizon, eps,
            )  # fmt: skip
    launch.launch_backward(
        plan, grad, q, k, v, out, den, dq, dk, dv, key_mask, None, narrow, wide, windows, causal, offset, eps
    )
    return dq, dk, dv


def _view(x: Tensor, windows: tuple[int, ...]) -> Tensor:
    part = _part(x, windows)
    assert part is not None
    return part


def _copy_heads(
    plan: LaunchPlan, part: Tensor, whole: Tensor, windows: tuple[int, ...], *, to_all: bool
) -> None:
    """Denominators of heads without a window, `part` [B, n, Tq], into those of all heads, or from there."""
    heads = _plain(windows)
    assert heads is not None
    batch, size = part.shape[0], part[0].numel()
    begin = heads.start * (whole.shape[1] // len(windows)) * whole.shape[2]
    plan.launch(
        copy_heads, batch * -(-size // COPIED), part, whole, size, whole.stride(0), begin, TO_ALL=to_all,
        ROWS=COPIED, num_warps=4,
    )  # fmt: skip
