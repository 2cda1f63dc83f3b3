"""Softmax attention within windows, in linear time:

o_i = sum_j softmax_j(q_i . k_j / sqrt(D)) v_j   over the keys with |i - j| < W, causally j <= i

Queries are taken in blocks of C >= W - 1, each against its own block of keys and the blocks beside it, by
PyTorch's fused attention with one small mask for all blocks. On CUDA in half precision one call of
flash-attention's kernel does all of it, which knows windows itself. Where the keys of a block do not exist or
may be hidden (at the ends, in what a state carries), its queries have a mask of their own.
"""

import math
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.attention.flash import can_flash, flash
from cosformer.attention.hidden_keys import can_hide, with_columns

BLOCK = 64  # a block is a multiple of it


def sliding_softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    windows: Sequence[int],
    *,
    causal: bool,
    offset: int,
    key_mask: Tensor | None = None,
) -> Tensor:
    """[B, Tq, H, Dv] for q [B, Tq, H, D], k [B, Tk, Hk, D], v [B, Tk, Hk, Dv] and a window for each key head.

    `offset`: the column of the first query among the keys. key_mask bool [B, M] is for the first M keys, all
    others are seen; keys and values that it hides are zeros. A query that sees no key gives zeros.
    """
    k, v, broken = _finite(k, v)
    group = q.shape[2] // k.shape[2]
    outs = []
    for first, last, window in runs(windows):
        own = q[:, :, first * group : last * group]
        k_own, v_own = (x[:, :, first:last] for x in (k, v))
        out = _one_window(own, k_own, v_own, window, causal, offset, key_mask)
        sees = _counted(broken[:, first:last], window, causal, offset, q.shape[1]) > 0
        outs.append(out.masked_fill(sees.repeat_interleave(group, 2)[..., None], math.nan))
    return outs[0] if len(outs) == 1 else torch.cat(outs, 2)


def runs(windows: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Neighbouring heads with the same window: first head, one behind the last, window."""
    first = 0
    for head, window in enumerate(windows):
        if head + 1 == len(windows) or windows[head + 1] != window:
            yield first, head + 1, window
            first = head + 1


def is_grouped(q: Tensor, k: Tensor) -> bool:
    """Whether several query heads share a key head, as a kernel wants to know it: in a graph with symbols for
    sizes a comparison of two is no bool."""
    if q.shape[2] != k.shape[2]:  # noqa: SIM103
        return True
    return False


def masked_attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, *, blind: bool) -> Tensor:
    """[B, Tq, H, Dv] under a mask seen [B or 1, 1, Tq, Tk]; `blind`: a query may see nothing, and gives
    zeros.

    The queries of a key head are laid end to end: fused kernels with a mask know no grouped heads.
    """
    heads, group = k.shape[2], q.shape[2] // k.shape[2]
    none = ~seen.any(-1, keepdim=True) if blind else None
    if none is not None:
        seen = seen | none
    q = q.unflatten(2, (heads, group)).permute(0, 2, 3, 1, 4)  # (B, Hk, G, Tq, D)
    out = F.scaled_dot_product_attention(
        q.flatten(2, 3), k.transpose(1, 2), v.transpose(1, 2), attn_mask=seen.repeat(1, 1, group, 1)
    )
    out = out.unflatten(2, (group, -1))
    if none is not None:
        out = out.masked_fill(none[:, :, None], 0)
    return out.permute(0, 3, 1, 2, 4).flatten(2, 3)


def _finite(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values with zeros in place of those that are not finite, and how many of these come before
    each column, [B, Hk, Tk + 1]: a weight of zero times NaN is NaN, so nothing hidden may hold one."""
    largest = [torch.linalg.vector_norm(x.detach(), math.inf, -1) for x in (k, v)]
    broken = ~(largest[0].isfinite() & largest[1].isfinite())
    k, v = (x.masked_fill(broken[..., None], 0) for x in (k, v))
    before = broken.transpose(1, 2).contiguous().cumsum(2)  # along memory: a GPU is slow across it
    return k, v, F.pad(before, (1, 0))


def _counted(before: Tensor, window: int, causal: bool, offset: int, tq: int) -> Tensor:
    """How many of the counted keys each query sees, [B, Tq, Hk]."""
    at = torch.arange(tq, device=before.device) + offset
    most = before.shape[2] - 1
    first, behind = at - (window - 1), at + (1 if causal else window)
    found = before[:, :, behind.clamp(0, most)] - before[:, :, first.clamp(0, most)]
    return found.transpose(1, 2)


def _one_window(
    q: Tensor, k: Tensor, v: Tensor, window: int, causal: bool, offset: int, key_mask: Tensor | None
) -> Tensor:
    """Heads with the same window: the queries in the middle, whose keys all exist and are seen, as one; those
    before and behind them apart."""
    tq, tk = q.shape[1], k.shape[1]
    masked = 0 if key_mask is None else key_mask.shape[1]
    size = -(-(window - 1) // BLOCK) * BLOCK or BLOCK
    ahead = 0 if causal else size
    if key_mask is not None and masked == tk == tq and offset == 0 and can_hide(q, k, v):
        scale, dim = q.shape[3] ** -0.5, v.shape[3]
        return flash(*with_columns(q, k, v, key_mask), window, causal, scale)[..., :dim]
    fused = can_flash(q, k, v) and masked < tk and (offset + tq <= tk if causal else offset + tq == tk)
    if fused:
        start, stop = max(0, masked + window - 1 - offset if masked else -offset), tq
    else:
        lowest = 0 if masked == tk else masked
        start = max(0, -((offset - lowest - size) // size)) * size
        stop = min(tq // size, (tk - offset - ahead) // size) * size
    if stop <= start:
        return _dense(q, k, v, window, causal, offset, key_mask)
    middle, at = q[:, start:stop], offset + start
    if fused:
        first = max(0, at - window + 1)
        found = flash(middle, k[:, first : offset + tq], v[:, first : offset + tq], window, causal)
    else:
        columns = slice(at - size, offset + stop + ahead)
        mask = None if masked < tk or key_mask is None else key_mask[:, columns]
        found = _blocks(middle, k[:, columns], v[:, columns], window, size, causal, mask)
    parts = [found]
    if start > 0:
        parts.insert(0, _dense(q[:, :start], k, v, window, causal, offset, key_mask))
    if stop < tq:
        parts.append(_dense(q[:, stop:], k, v, window, causal, offset + stop, key_mask))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _dense(
    q: Tensor, k: Tensor, v: Tensor, window: int, causal: bool, offset: int, key_mask: Tensor | None
) -> Tensor:
    """All queries against all keys that one of them can see."""
    tq = q.shape[1]
    first = min(max(0, offset - window + 1), k.shape[1])
    behind = min(max(first, offset + tq + (0 if causal else window - 1)), k.shape[1])
    if first == behind:
        return q.new_zeros(*q.shape[:3], v.shape[3])
    k, v, offset, columns = k[:, first:behind], v[:, first:behind], offset - first, behind - first
    if key_mask is not None:
        key_mask = key_mask[:, first:behind]
        masked = key_mask.shape[1]
        key_mask = F.pad(key_mask, (0, columns - masked), value=True) if masked else None
    if key_mask is None and causal and offset == 0 and tq == columns <= window:
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            is_causal=True,
            enable_gqa=is_grouped(q, k),
        )
        return out.transpose(1, 2)
    seen = _band(tq, columns, offset, window, causal, q.device)
    if key_mask is not None:
        seen = seen & key_mask[:, None, None]
    return masked_attention(q, k, v, seen, blind=True)


def _blocks(
    q: Tensor, k: Tensor, v: Tensor, window: int, size: int, causal: bool, key_mask: Tensor | None
) -> Tensor:
    """Blocks of `size` queries; the keys begin a block before them and, where not causal, end one behind."""
    blocks, reach = q.shape[1] // size, 2 if causal else 3

    def beside(x: Tensor) -> Tensor:
        """The blocks that each block of queries reads, end to end: [B * blocks, reach * size, ...]."""
        x = x.unflatten(1, (-1, size))
        return torch.cat([x[:, i : i + blocks] for i in range(reach)], 2).flatten(0, 1)

    seen = _band(size, reach * size, size, window, causal, q.device)
    if key_mask is not None:
        seen = seen & beside(key_mask)[:, None, None]
    own = q.unflatten(1, (blocks, size)).flatten(0, 1)
    out = masked_attention(own, beside(k), beside(v), seen, blind=key_mask is not None)
    return out.unflatten(0, (-1, blocks)).flatten(1, 2)


def _band(tq: int, tk: int, offset: int, window: int, causal: bool, device: torch.device) -> Tensor:
    """bool [1, 1, Tq, Tk]: which keys are within the window."""
    i, j = torch.arange(tq, device=device)[:, None] + offset, torch.arange(tk, device=device)
    return ((i - j < window) & (j <= i if causal else j - i < window))[None, None]
