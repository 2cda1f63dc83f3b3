"""The public function over a process group: its checks, and the state after the whole sequence."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cosformer.distributed.attention import Found, SplitAttention
from cosformer.distributed.exchange import group_sum
from cosformer.distributed.group import AnyGroup, sequence_group
from cosformer.distributed.shard import Shard
from cosformer.ops import CosformerState, cosformer_attention
from cosformer.ops.checks import within_horizon
from cosformer.ops.packing import check_documents, document_bounds
from cosformer.ops.validation import check_call, check_lengths, horizon_of
from cosformer.ops.windows import Windows, check_windows, public, rotated_rows, same_windows


def sequence_parallel_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    group: AnyGroup,
    causal: bool = False,
    horizon: float | None = None,
    windows: Sequence[int | None] | None = None,
    key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    eps: float = 1e-6,
    lengths: Tensor | None = None,
    state: CosformerState | None = None,
    return_state: bool = False,
    backend: str = "auto",
    check: bool = True,
) -> Tensor | tuple[Tensor, CosformerState]:
    """`cosformer_attention` over a sequence that is cut into shards of L tokens: rank r of the group holds
    tokens r L .. (r + 1) L - 1, and gets the output of these. Values and gradients equal those of one device.

    Heads without a window cost one all-gather of states forward and one backward, whatever the length; heads
    with a window W send W - 1 keys and values to a neighbour (to several, where a shard is shorter).

    The gradients on a rank are those of the sum of what all ranks compute: sum those of weights, and of
    `state`, over the group.

    Args:
        q: queries [B, L, H, D] of this shard.
        k: keys [B, L, Hk, D].
        v: values [B, L, Hk, Dv].
        group: a process group, one dimension of a DeviceMesh, or a `SequenceGroup`.
        causal, horizon, windows, eps, backend: as in `cosformer_attention`; no horizon: the whole length.
        key_mask: bool [B, L] of this shard.
        cu_seqlens: bounds of the documents in the whole sequence, the same on every rank; they may lie
            anywhere, and documents may reach over several shards.
        lengths: int [B], how many columns of the whole sequence belong to each row; the same on every rank.
        state: that of everything before the whole sequence, the same on every rank.
        return_state: also return the state after the whole sequence, on every rank, for one more
            all-gather of the states of all rows (documents).
        check: compare the call with those of the other ranks first, so that all raise where one differs. It
            costs a message between hosts, and waits for no device.

    Returns:
        [B, L, H, Dv]; with `return_state`, a pair of it and a `CosformerState`.
    """
    ranks = sequence_group(group)
    if ranks.size == 1:
        return cosformer_attention(
            q, k, v, causal=causal, horizon=horizon, windows=windows, key_mask=key_mask, eps=eps,
            cu_seqlens=cu_seqlens, lengths=lengths, state=state, return_state=return_state, backend=backend,
        )  # fmt: skip
    shard, error = Shard(ranks, 1), None
    try:
        shard = Shard(ranks, k.shape[1])
        check_call(q, k, v, key_mask, cu_seqlens, None, state)
        if q.shape[1] != k.shape[1]:
            raise ValueError(
                f"q and k must have the same length L, that of a shard, but got {q.shape[1]} and "
                f"{k.shape[1]}."
            )
        if lengths is not None:
            check_lengths(lengths, k.shape[0], shard.total, k.device, cu_seqlens)
        m = _checked_horizon(shard, horizon, windows, k, state, return_state)
        bounds = _checked_bounds(shard, m, cu_seqlens, state)
        shard = Shard(ranks, k.shape[1], bounds)
    except (TypeError, ValueError) as found:
        if not check:
            raise
        error = found
    if check:
        shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in (("q", q), ("k", k), ("v", v)))
        given = {"key_mask": key_mask, "lengths": lengths, "state": state, "cu_seqlens": shard.packed}
        others = ", ".join(name for name, x in given.items() if x is not None) or "nothing else"
        documents = "" if shard.packed is None else f" of {hash(shard.packed):x}"
        ranks.agree(
            f"{shapes}, {q.dtype}, causal={causal}, horizon={horizon}, windows={windows}, "
            f"return_state={return_state}, {others}{documents}",
            error,
        )
    elif error is not None:
        raise error
    call = SplitAttention(
        k, v, shard, causal=causal, horizon=m, windows=windows, key_mask=key_mask, lengths=lengths, eps=eps,
        state=state, return_state=return_state, backend=backend,
    )  # fmt: skip
    out, found_state = call(q)
    if found_state is None:
        return out
    return out, _final(call, found_state)


def _checked_horizon(
    shard: Shard,
    horizon: float | None,
    windows: Sequence[int | None] | None,
    k: Tensor,
    state: CosformerState | None,
    return_state: bool,
) -> float | None:
    of_heads = check_windows(windows, k.shape[2])
    if state is not None:
        same_windows(of_heads, check_windows(state.windows, None))
    if of_heads is not None and 0 not in of_heads:
        return None
    m = horizon_of(horizon, state, return_state)
    return float(shard.total) if m is None else m


def _checked_bounds(
    shard: Shard, horizon: float | None, cu_seqlens: Tensor | None, state: CosformerState | None
) -> tuple[int, ...] | None:
    """The bounds of documents as ints; raises if a text is longer than the horizon."""
    if cu_seqlens is None:
        last = shard.total - 1 + (0 if state is None else state.seen)
        if horizon is not None:
            within_horizon(last, horizon, last)
        return None
    if horizon is None:
        return tuple(document_bounds(cu_seqlens, shard.total))
    positions = None if state is None else state.positions
    return tuple(check_documents(cu_seqlens, shard.total, positions, horizon))


def _final(call: SplitAttention, found: Found) -> CosformerState:
    """The state after the whole sequence; of each row or document, from the rank where it ends."""
    shard, k, v, before = call.shard, call.k, call.v, call.state
    rank, size = shard.group.rank, shard.group.size
    rows = k.shape[0] if shard.packed is None else len(shard.packed) - 1
    windows = public(check_windows(call.windows_given, k.shape[2]))
    base = k.new_zeros(rows, dtype=torch.int64) if before is None else before.positions
    if shard.packed is not None:
        bounds = torch.tensor(shard.packed, device=k.device)
        sizes = bounds.diff()
        owner = (bounds[1:] - 1).div(shard.length, rounding_mode="floor").masked_fill(sizes == 0, -1)
    elif call.lengths is not None:
        sizes = call.lengths.to(torch.int64)
        owner = (sizes - 1).clamp_min(0).div(shard.length, rounding_mode="floor")
    else:
        sizes = torch.full_like(base, shard.total)
        owner = torch.full_like(base, size - 1)

    def collected(x: Tensor, first: int, owner: Tensor, was: Tensor | None) -> Tensor:
        """x has the rows from `first` on; those of documents without a token are as they were."""
        own = owner[first : first + len(x)] == rank
        x = x.masked_fill(~own.view(-1, *[1] * (x.dim() - 1)), 0)
        every = torch.cat([x.new_zeros((first, *x.shape[1:])), x])
        every = torch.cat([every, x.new_zeros((rows - len(every), *x.shape[1:]))])
        total = group_sum(every, shard.group)
        if was is None or shard.packed is None:
            return total
        return torch.where((owner < 0).view(-1, *[1] * (total.dim() - 1)), was, total)

    at = shard.documents(shard.start, shard.stop).start if shard.packed is not None else 0
    state = CosformerState.zeros(
        rows, k.shape[2], k.shape[3], v.shape[3], horizon=call.horizon, windows=windows, device=k.device,
        dtype=torch.float64 if k.dtype == torch.float64 else torch.float32, input_dtype=k.dtype,
    )  # fmt: skip
    positions = base + sizes
    seen = shard.total + (0 if before is None else before.seen)
    if positions.device.type == "cpu":
        seen = int(positions.max())
    state = replace(state, positions=positions, seen=seen)
    if found.plain is not None:
        # Masked keys add nothing: the last rank has the sums of every row.
        last = owner if shard.packed is not None else torch.full_like(owner, size - 1)
        was = None if before is None else torch.cat([before.numerator, before.denominator[..., None]], -1)
        sums = collected(found.plain, at, last, was)
        state = replace(state, numerator=sums[..., :-1], denominator=sums[..., -1])
    if found.windowed is not None:
        at = found.windowed_documents.start if shard.packed is not None else 0
        of_heads = check_windows(windows, None)
        assert of_heads is not None
        mine = _oldest_first(found.windowed, of_heads)
        of_state = (None, None) if before is None else _oldest_first(before, of_heads)
        keys, values = (collected(x, at, owner, was) for x, was in zip(mine, of_state, strict=True))
        keys, values = rotated_rows(keys, values, of_heads, -positions)
        state = replace(state, keys=keys, values=values)
    return state


def _oldest_first(state: CosformerState, windows: Windows) -> tuple[Tensor, Tensor]:
    """Keys and values of heads with a window, in an order that does not depend on where a state begins to
    count: that of a part of a text counts from the first token of the part."""
    assert state.keys is not None
    assert state.values is not None
    return rotated_rows(state.keys, state.values, windows, state.positions)
