"""One token a row after a state that is overwritten: heads without a window by their sums, heads with one by
their last keys and values."""

from torch import Tensor

from cosformer.ops.args import AttentionArgs
from cosformer.ops.gpu.carried_state import State
from cosformer.ops.gpu.launch_cache import on_device
from cosformer.ops.gpu.windows import step as windows
from cosformer.ops.triton import run


def step(args: AttentionArgs, *, advance: bool = False) -> Tensor:
    """o [B, 1, H, Dv]; numerator, denominator, past keys and past values of `args` are overwritten, and
    positions `advance` by one."""
    carried = (args.numerator, args.denominator, args.past_keys, args.past_values, args.positions)
    if not all(x is None or x.is_contiguous() for x in carried):
        raise ValueError("a state that is updated in place must be contiguous; call state.clone() first.")
    numerator, denominator, keys, values, positions = carried
    assert numerator is not None
    assert denominator is not None
    assert positions is not None
    with on_device(args.q):
        if args.windows is None:
            out = _plain_step(args, numerator, denominator, positions)
            if advance:
                positions.add_(1)
        else:
            assert keys is not None
            assert values is not None
            out = args.q.new_empty((*args.q.shape[:3], args.v.shape[3]))
            windows.step(
                args.q, args.k, args.v, out, keys, values, numerator, denominator, positions, args.windows,
                args.key_mask, 1.0 if args.horizon is None else args.m, args.eps, advance,
            )  # fmt: skip
        return out


def _plain_step(args: AttentionArgs, numerator: Tensor, denominator: Tensor, positions: Tensor) -> Tensor:
    state = State.of(numerator, denominator)
    out = run.step(args.q, args.k, args.v, args.key_mask, state, positions, args.m, args.eps)
    # Sums at an address that kernels do not take are a copy, which is copied back.
    if state.s is not numerator:
        numerator.copy_(state.s)
    if state.z is not denominator:
        denominator.copy_(state.z)
    return out
