"""The step of one token per row as a library op, so that it overwrites the state inside a compiled graph,
too."""

import torch
from torch import Tensor

from cosformer.ops.args import AttentionArgs
from cosformer.ops.triton.stepping import step


def step_token(args: AttentionArgs) -> Tensor:
    """o [B, 1, H, Dv]; numerator, denominator, past keys and past values of `args` are overwritten."""
    if not torch.compiler.is_compiling():
        return step(args)
    windows = None if args.windows is None else list(args.windows)
    return _op(
        args.q, args.k, args.v, args.numerator, args.denominator, args.positions, args.horizon, args.eps,
        args.past_keys, args.past_values, windows,
    )  # fmt: skip


@torch.library.custom_op(
    "cosformer::step_token", mutates_args=("numerator", "denominator", "past_keys", "past_values")
)
def _op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    numerator: Tensor,
    denominator: Tensor,
    positions: Tensor,
    horizon: float | None,
    eps: float,
    past_keys: Tensor | None,
    past_values: Tensor | None,
    windows: list[int] | None,
) -> Tensor:
    of_heads = None if windows is None else tuple(windows)
    return step(
        AttentionArgs.of_token(
            q, k, v, numerator, denominator, positions, horizon, eps, past_keys, past_values, of_heads
        )
    )


@_op.register_fake
def _fake(q: Tensor, k: Tensor, v: Tensor, *rest: object, **named: object) -> Tensor:
    return q.new_empty((*q.shape[:3], v.shape[3]))
