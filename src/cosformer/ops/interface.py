"""The public function: what its arguments mean, validation, and the choice of a backend."""

from collections.abc import Sequence
from functools import partial
from typing import Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor
from torch.autograd import forward_ad

from cosformer.ops.args import AttentionArgs
from cosformer.ops.backends import NAMES, choose
from cosformer.ops.checks import epsilon, flag, readable
from cosformer.ops.gpu import launch_cache
from cosformer.ops.state import CosformerState
from cosformer.ops.validation import check_call, check_distances, horizon_of, mask_of_lengths, offset_of
from cosformer.ops.windows import Windows, check_windows, last_keys, public, rotated_rows, same_windows


class _Options(TypedDict, total=False):
    """The keyword arguments of the operator but for `return_state`, which decides what it returns."""

    causal: bool
    horizon: float | None
    windows: Sequence[int | None] | None
    key_mask: Tensor | None
    query_offset: int | None
    cu_seqlens: Tensor | None
    eps: float
    lengths: Tensor | None
    state: CosformerState | None
    backend: str


@overload
def cosformer_attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_state: Literal[False] = ..., **options: Unpack[_Options]
) -> Tensor: ...


@overload
def cosformer_attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_state: Literal[True], **options: Unpack[_Options]
) -> tuple[Tensor, CosformerState]: ...


@overload
def cosformer_attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_state: bool, **options: Unpack[_Options]
) -> Tensor | tuple[Tensor, CosformerState]: ...


def cosformer_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    horizon: float | None = None,
    windows: Sequence[int | None] | None = None,
    key_mask: Tensor | None = None,
    query_offset: int | None = None,
    cu_seqlens: Tensor | None = None,
    eps: float = 1e-6,
    lengths: Tensor | None = None,
    state: CosformerState | None = None,
    return_state: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, CosformerState]:
    """Linear attention with ReLU features and the cosine re-weighting of cosFormer (ICLR 2022):

        o_i = sum_j w_ij v_j / max(sum_j w_ij, eps),   w_ij = (ReLU(q_i) . ReLU(k_j)) cos((pi/2)(i - j)/M)

    exactly, at a cost that grows with the length and not with its square.

    Args:
        q: queries [B, Tq, H, D], float16, bfloat16, float32 or float64, any strides.
        k: keys [B, Tk, Hk, D]. H is a multiple of Hk: each key head serves H / Hk query heads.
        v: values [B, Tk, Hk, Dv].
        causal: query i sees the keys at its own position and before.
        horizon: M, the distance at which a weight reaches zero. None means max(Tq, Tk), the paper's
            choice; give it wherever the same text may occur at another length (padded, packed, cut).
            A distance beyond it is an error: the weights would turn negative.
        windows: an int W or None for each key-value head. A head with a window weighs
            cos((pi/2)(i - j)/W) for |i - j| < W and 0 beyond; one without has `horizon` as M. Above 256 a
            window is a multiple of 64. Where every head has one, no horizon is needed, and a text
            has no bound.
        key_mask: bool [B, Tk], True = may be attended to. Masked keys have no influence whatever
            they hold, NaN included; a query that sees no key at all gives zeros.
        query_offset: position of the first query, seen from the first key of this call. By default
            Tk - Tq if causal (aligned at the end, as cached decoding needs), else 0.
        cu_seqlens: int [N + 1], bounds of N documents packed into one row (B = 1, Tq = Tk); no
            document sees another. States then have a row for each document.
        eps: lower bound of the denominator.
        lengths: int [B], how many of the Tk columns belong to each row. The rest are padding: they are
            masked, and the outgoing state is that after the last column that is not.
        state: the state before this call's keys, from `return_state` of the call before.
        return_state: also return the state after this call's keys.
        backend: "auto", or one of `cosformer.backends()` by name.

    Returns:
        [B, Tq, H, Dv] in q's dtype; with `return_state`, a pair of it and a `CosformerState`.
    """
    key = None
    plain = key_mask is None and query_offset is None and cu_seqlens is None and state is None
    if plain and return_state is False and lengths is None:
        key = launch_cache.inference_key(q, k, v, causal, horizon, windows, eps, backend)
        replay = launch_cache.lookup(key)
        if replay is not None:
            return replay(q, k, v)
    q, k, v = under_autocast(q, k, v)
    check_call(q, k, v, key_mask, cu_seqlens, query_offset, state)
    causal = flag("causal", causal)
    return_state = flag("return_state", return_state)
    eps = epsilon(eps)
    of_heads = check_windows(windows, k.shape[2])
    unbounded = of_heads is not None and 0 not in of_heads
    if lengths is not None:
        key_mask = mask_of_lengths(lengths, key_mask, k, cu_seqlens)
    offset = offset_of(query_offset, q, k, causal)
    if state is not None:
        same_windows(of_heads, check_windows(state.windows, None))
    m = None if unbounded else horizon_of(horizon, state, return_state)
    check_distances(q, k, causal, offset, m, state, cu_seqlens, of_heads)
    if backend not in NAMES:
        raise ValueError(f"backend must be one of {', '.join(NAMES)}, but got {backend!r}.")
    past = () if state is None else (state.numerator, state.denominator, state.keys, state.values)
    _refuse_tangents(q, k, v, *past)
    args = _args(q, k, v, causal, m, of_heads, key_mask, offset, cu_seqlens, eps, state, return_state)
    # A state counts positions from the first key.
    seen = state.seen if state is not None else 0 if return_state else None
    chosen = choose(backend, args, seen)
    out, numerator, denominator = chosen.run(args)
    if key is not None and chosen.replay is not None:
        launch_cache.store_replay(key, partial(chosen.replay, args))
    if not return_state or numerator is None or denominator is None:
        return out
    positions, seen = _seen_after(args, lengths, state)
    keys = values = None
    if of_heads is not None:
        keys, values = rotated_rows(*last_keys(args, lengths), of_heads, -positions)
    return out, CosformerState(numerator, denominator, positions, seen, m, keys, values, public(of_heads))


def _refuse_tangents(*inputs: Tensor | None) -> None:
    """A call that is traced would drop them."""
    if forward_ad._current_level >= 0 and any(_has_tangent(x) for x in inputs if x is not None):
        raise RuntimeError(
            "cosformer_attention has no forward-mode derivatives (torch.func.jvp, linearize, jacfwd): use "
            "those of reverse mode (vjp, jacrev)."
        )


def _has_tangent(x: Tensor) -> bool:
    """Of a tensor that vmap has batched, what it is made of is looked at: for the whole there is no rule."""
    while torch._C._functorch.is_batchedtensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return forward_ad.unpack_dual(x).tangent is not None


def _args(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    horizon: float | None,
    windows: Windows | None,
    key_mask: Tensor | None,
    offset: int,
    cu_seqlens: Tensor | None,
    eps: float,
    state: CosformerState | None,
    return_state: bool,
) -> AttentionArgs:
    numerator = denominator = positions = keys = values = None
    if state is not None:
        numerator, denominator, positions = state.numerator, state.denominator, state.positions
        if windows is not None and state.keys is not None and state.values is not None:
            keys, values = rotated_rows(state.keys, state.values, windows, positions)
    elif return_state:
        rows = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        positions = q.new_zeros(rows, dtype=torch.int64)
    tensors = (q, k, v, numerator, denominator, keys, values)
    keep = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    return AttentionArgs(
        q, k, v, key_mask, cu_seqlens, numerator, denominator, positions, causal, offset, horizon, eps,
        return_state, keep, keys, values, windows,
    )  # fmt: skip


def _seen_after(
    args: AttentionArgs, lengths: Tensor | None, state: CosformerState | None
) -> tuple[Tensor, int]:
    """The positions each row has seen after this call, and an upper bound that needs no synchronisation."""
    assert args.positions is not None
    bound = args.k.shape[1] + (0 if state is None else state.seen)
    added = lengths if args.cu_seqlens is None else args.cu_seqlens.diff()
    if added is None:
        return args.positions + args.k.shape[1], bound
    after = args.positions + added
    return after, int(after.max()) if readable(after) else bound


def under_autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Inside an autocast region, inputs take its type, as they do for PyTorch's own attention."""
    device = q.device.type if isinstance(q, Tensor) else "cpu"
    if device == "meta" or not torch.is_autocast_enabled(device):
        return q, k, v
    to = torch.get_autocast_dtype(device)
    return tuple(
        x.to(to) if isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64 else x
        for x in (q, k, v)
    )  # type: ignore[return-value]
