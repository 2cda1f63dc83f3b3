"""Softmax attention (Vaswani et al., 2017, arXiv:1706.03762, equation 1), by PyTorch's own kernels:

o_i = sum_j softmax_j(q_i . k_j / sqrt(D)) v_j

A head with a window W sees the keys with |i - j| < W alone. Where every head has one, time is linear in the
length (sliding.py), and the state has a constant size (window_state.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.attention.base import Attention, State
from cosformer.attention.hidden_keys import can_hide, with_columns
from cosformer.attention.kv import KeyValueState
from cosformer.attention.registry import register
from cosformer.attention.sliding import is_grouped, masked_attention, runs, sliding_softmax
from cosformer.attention.traits import Traits
from cosformer.attention.visible import visible, windows_of_heads, within_windows
from cosformer.attention.window_state import WindowState
from cosformer.ops.one_token import StepWeights
from cosformer.ops.packing import document_bounds
from cosformer.ops.validation import mask_of_lengths, offset_of

if TYPE_CHECKING:
    from cosformer.distributed.shard import Shard


@register("softmax")
class Softmax(Attention):
    """The attention everything else is compared with. Its state is the growing cache of keys and values.

    A finite query that sees no key gives zeros, and a masked key has no influence whatever it holds. On a GPU
    in half precision, with heads of up to 64, masked keys are hidden by columns (hidden_keys.py): there no
    product of a query and a seen key may lie below -8 million.

    Args:
        windows: an int or None for each key-value head; None: no head has one. Where all have one, time is
            linear in the length, the state keeps the last max(W) - 1 keys, a text has no bound, and nothing
            beyond a window has an influence, whatever it holds. Where only some have one, time is quadratic
            and the state keeps every key: scores beyond a window are computed and hidden.
        num_kv_heads: key-value heads, which windows have an entry for each of.
    """

    traits = Traits(
        paper="Attention Is All You Need, arXiv:1706.03762",
        cost="quadratic",
        causal=True, bidirectional=True, cross=True, key_mask=True, cu_seqlens=True, recurrent=True,
        grouped_heads=True, sequence_parallel=True,
    )  # fmt: skip
    state_type: type = KeyValueState

    def __init__(self, *, windows: Sequence[int | None] | None = None, num_kv_heads: int | None = None):
        super().__init__()
        self.windows, self.num_kv_heads = windows_of_heads(windows, num_kv_heads), num_kv_heads
        self.traits = self.traits_with(windows=self.windows)
        if self.traits.constant_state:
            self.state_type, self.takes_lengths, self.writes_into = WindowState, True, True

    @classmethod
    def traits_with(cls, *, windows: Sequence[int | None] | None = None, **parameters: Any) -> Traits:
        if not windows or None in windows:
            return cls.traits
        return replace(cls.traits, cost="linear", constant_state=cls.traits.recurrent)

    @property
    def has_bound(self) -> bool:
        return not self.traits.constant_state

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, key_mask: Tensor | None,
        query_offset: int | None, cu_seqlens: Tensor | None, state: Any, return_state: bool,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, State | None]:  # fmt: skip
        windows = windows_of_heads(self.windows, k.shape[2])
        if lengths is not None:
            key_mask = mask_of_lengths(lengths, key_mask, k, cu_seqlens)
        if cu_seqlens is not None:
            return self._packed(q, k, v, cu_seqlens, causal), None
        offset = offset_of(query_offset, q, k, causal)
        if key_mask is not None:
            # Zero times NaN is NaN: masked keys and values are set to zero.
            k, v = (x.masked_fill(~key_mask[..., None, None], 0) for x in (k, v))
        sliding = _if_all(windows)
        if sliding is not None:
            return _within(q, k, v, sliding, causal, offset, key_mask, lengths, state, return_state)
        near = None if windows is None or state is not None else _near(q, k, offset, windows)
        after = None
        if state is not None or return_state:
            before = KeyValueState.empty(k, v, windows=windows is not None) if state is None else state
            after = before.append(k, v, key_mask)
            if near is None and windows is not None:
                near = _near_carried(q, offset, before, after, windows)
            offset += before.length
            k, v, key_mask = after.keys, after.values, after.mask
        out = _softmax(q, k, v, causal, offset, key_mask, near)
        return out, after if return_state else None

    def split(
        self, k: Tensor, v: Tensor, shard: "Shard", *, causal: bool, lengths: Tensor | None
    ) -> Callable[[Tensor], Tensor]:
        """Every rank computes its own queries. It gets all keys and values, and what is sent grows with the
        length, as it must; where every head has a window, it gets those that the widest reaches."""
        from cosformer.distributed.gathered import with_all_keys, with_near_keys

        windows = _if_all(self.windows)
        if windows is None:
            return with_all_keys(self, k, v, shard, causal=causal, lengths=lengths)
        return with_near_keys(self, k, v, shard, causal=causal, lengths=lengths, reach=max(windows) - 1)

    def attend_token(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, weights: StepWeights, seen: int, into: Any = None,
    ) -> tuple[Tensor, State]:  # fmt: skip
        sliding = _if_all(windows_of_heads(self.windows, k.shape[2]))
        if sliding is not None:
            return _one_token(q, k, v, sliding, state, state.empty_like() if into is None else into)
        if into is not state:
            return super().attend_token(q, k, v, state, weights, seen)
        state.write_token(k, v, weights)
        windows, near = windows_of_heads(self.windows, k.shape[2]), None
        if windows is not None:
            assert state.at is not None
            near = within_windows(weights.positions[:, None], state.at, windows)
        return _softmax(q, state.keys, state.values, False, 0, state.mask, near), state

    def _packed(self, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, causal: bool) -> Tensor:
        """Document by document: no T × T mask, and nothing of one document can reach another."""
        parts, sliding = [], _if_all(self.windows)
        for a, b in pairwise(document_bounds(cu_seqlens, q.shape[1])):
            if b > a:
                own_q, own_k, own_v = (x[:, a:b] for x in (q, k, v))
                if sliding is not None:
                    parts.append(_within(own_q, own_k, own_v, sliding, causal, 0)[0])
                    continue
                near = None if self.windows is None else _near(own_q, own_k, 0, self.windows)
                parts.append(_softmax(own_q, own_k, own_v, causal, 0, None, near))
        return torch.cat(parts, 1)

    def state_size(
        self, length: int, *, num_kv_heads: int, head_dim: int, value_dim: int | None = None
    ) -> int:
        """Every key and every value; those that the widest window reaches, where every head has one."""
        windows = _if_all(self.windows)
        if windows is not None:
            length = max(windows) - 1
        return length * num_kv_heads * (head_dim + (head_dim if value_dim is None else value_dim))

    def extra_repr(self) -> str:
        return "" if self.windows is None else f"windows={self.windows}"


def _if_all(windows: Sequence[int | None] | None) -> list[int] | None:
    """The windows, if every head has one."""
    found = [w for w in windows or () if w is not None]
    return found if found and len(found) == len(windows or ()) else None


def _within(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    windows: Sequence[int],
    causal: bool,
    offset: int,
    key_mask: Tensor | None = None,
    lengths: Tensor | None = None,
    state: WindowState | None = None,
    return_state: bool = False,
) -> tuple[Tensor, WindowState | None]:
    """Where every head has a window; what key_mask hides is zero."""
    after, columns = None, max(windows) - 1
    if return_state:
        before = WindowState.empty(k, v, columns) if state is None else state
        after = before.append(k, v, key_mask, lengths)
    if state is not None:
        if state.columns != columns:
            raise ValueError(
                f"state must be of windows up to {columns + 1}, as those of this attention, but it has "
                f"{state.columns} keys, of windows up to {state.columns + 1}. Compute it again with this "
                "attention."
            )
        k, v = torch.cat((state.keys, k), 1), torch.cat((state.values, v), 1)
        key_mask = state.mask if key_mask is None else torch.cat((state.mask, key_mask), 1)
        offset += columns
    elif min(windows) >= max(offset + q.shape[1], k.shape[1] - min(offset, 0)):  # nothing is beyond one
        return _softmax(q, k, v, causal, offset, key_mask, None), after
    out = sliding_softmax(q, k, v, windows, causal=causal, offset=offset, key_mask=key_mask)
    return out, after


def _one_token(
    q: Tensor, k: Tensor, v: Tensor, windows: Sequence[int], state: WindowState, into: WindowState
) -> tuple[Tensor, WindowState]:
    """One token a row: the last W keys of each head are those it sees."""
    k, v = torch.cat((state.keys, k), 1), torch.cat((state.values, v), 1)
    mask = F.pad(state.mask, (0, 1), value=True)
    for old, new in ((into.keys, k), (into.values, v), (into.mask, mask)):
        old.copy_(new[:, 1:])
    outs, group = [], q.shape[2] // k.shape[2]
    for first, last, window in runs(windows):
        q_own = q[:, :, first * group : last * group]
        k_own, v_own = (x[:, k.shape[1] - window :, first:last] for x in (k, v))
        seen = mask[:, None, None, k.shape[1] - window :]
        outs.append(masked_attention(q_own, k_own, v_own, seen, blind=False))
    return (outs[0] if len(outs) == 1 else torch.cat(outs, 2)), into


def _near(q: Tensor, k: Tensor, offset: int, windows: Sequence[int | None]) -> Tensor | None:
    """Which keys of the call lie within the windows of its queries: bool [1, Hk, Tq, Tk]; None if all do."""
    longest = max(offset + q.shape[1], k.shape[1])
    if all(w is None or w >= longest for w in windows):
        return None
    i, j = (torch.arange(x.shape[1], device=q.device)[None] for x in (q, k))
    return within_windows(i + offset, j, windows)


def _near_carried(
    q: Tensor, offset: int, before: KeyValueState, after: KeyValueState, windows: Sequence[int | None]
) -> Tensor:
    """The same among all keys that a state carries: bool [B, Hk, Tq, T]."""
    if after.at is None:
        raise ValueError(
            "state was made without windows, but this attention has windows: it does not say where each key "
            "stands. Compute it again with this attention."
        )
    i = before.positions[:, None] + offset + torch.arange(q.shape[1], device=q.device)
    return within_windows(i, after.at, windows)


def _softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    offset: int,
    key_mask: Tensor | None,
    near: Tensor | None,
) -> Tensor:
    tq, tk = q.shape[1], k.shape[1]
    # Where each query stands at or behind the last key, causality hides nothing.
    hides = causal and offset < tk - 1
    maskless = near is None and (not hides or _is_square(q, k, offset))
    dim, scale = v.shape[3], None
    if maskless and key_mask is not None and can_hide(q, k, v):
        scale = q.shape[3] ** -0.5
        (q, k, v), key_mask = with_columns(q, k, v, key_mask), None
    simple = maskless and key_mask is None
    seen = None if simple else visible(tq, tk, offset, hides, key_mask, q.device)
    if seen is not None and near is not None:
        seen = (seen & near).repeat_interleave(q.shape[2] // k.shape[2], 1)
    any_key = None if seen is None else seen.any(-1, keepdim=True)
    is_causal = False
    if simple and hides:  # in a graph lengths are symbols, and a kernel wants to know
        is_causal = True
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=None if seen is None or any_key is None else seen | ~any_key,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=is_grouped(q, k),
    )[..., :dim]
    if any_key is not None:
        out = out.masked_fill(~any_key, 0)
    return out.transpose(1, 2)


def _is_square(q: Tensor, k: Tensor, offset: int) -> bool:
    """Whether query i stands at key i, as the kernels' own causality has it."""
    return offset == 0 and q.shape[1] == k.shape[1]
