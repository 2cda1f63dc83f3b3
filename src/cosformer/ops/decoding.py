"""Decoding with a state that is updated in place: nothing is allocated but the result, and a captured
CUDA graph can be replayed token after token."""

from dataclasses import replace

import torch
from torch import Tensor

from cosformer.ops.args import AttentionArgs
from cosformer.ops.checks import epsilon, within_horizon
from cosformer.ops.one_token import StepWeights, has_kernel, one_token
from cosformer.ops.state import CosformerState
from cosformer.ops.validation import check_call
from cosformer.ops.windows import check_windows


@torch.no_grad()
def decode_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: CosformerState,
    *,
    key_mask: Tensor | None = None,
    eps: float = 1e-6,
) -> tuple[Tensor, CosformerState]:
    """One token a row: q [B, 1, H, D], k [B, 1, Hk, D], v [B, 1, Hk, Dv]; out [B, 1, H, Dv].

    As `cosformer_attention(..., causal=True, state=state, return_state=True)`, without gradients, but
    the tensors of `state` are overwritten and belong to the state that is returned: the given one must
    not be used again. `positions` advances with every replay of a CUDA graph; `seen`, an int, cannot:
    the caller has to count replays, and stop at the horizon.
    """
    check_call(q, k, v, key_mask, None, None, state)
    if q.shape[1] != 1 or k.shape[1] != 1:
        raise ValueError(
            f"decode_step takes one token a row, but got {q.shape[1]} queries and {k.shape[1]} keys; use "
            "cosformer_attention(..., state=state, return_state=True) for longer pieces."
        )
    eps = epsilon(eps)
    if state.horizon is not None:
        within_horizon(state.seen, state.horizon, state.seen)
    args = AttentionArgs.of_token(
        q, k, v, state.numerator, state.denominator, state.positions, state.horizon, eps, state.keys,
        state.values, check_windows(state.windows, k.shape[2]), key_mask,
    )  # fmt: skip
    if q.is_cuda and has_kernel(args, state.seen):
        from cosformer.ops.triton.stepping import step

        out = step(args, advance=True)
    else:
        if key_mask is not None:
            k, v = (x.masked_fill(~key_mask[..., None, None], 0) for x in (k, v))
        # Autocast would add to the sums in half precision.
        with torch.autocast(q.device.type, enabled=False):
            out = one_token(q, k, v, state, state, StepWeights(state.positions), eps)
        state.positions.add_(1)
    return out, replace(state, seen=state.seen + 1)
