"""Windows of heads: what they may be, which heads have one, and the keys and values a head carries.

A head with the window W weighs cos((pi/2) d/W) at the distance d for |d| < W, and 0 beyond. What it can still
see of the past is its last W - 1 keys and values: that is its state.
"""

from collections.abc import Sequence
from functools import cache
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cosformer.ops.args import AttentionArgs
from cosformer.ops.autograd import is_traced

NARROW = 256  # up to here a window may be any number; above, a multiple of CHUNK
CHUNK = 64

Windows = tuple[int, ...]  # one for each key head; 0: no window


class WindowedHead(NamedTuple):
    """A key head with a window; `rows`: where its W - 1 keys and values lie in a state."""

    head: int
    window: int
    rows: slice


def check_windows(windows: Any, kv_heads: int | None) -> Windows | None:
    """One number for each key head, 0 for a head without a window; None where no head has one.

    `kv_heads`: how many key heads there are, None where that is not known yet."""
    if windows is None:
        return None
    if isinstance(windows, str) or not isinstance(windows, Sequence):
        raise TypeError(
            "windows must be a list or tuple with an int or None for each key-value head, but got "
            f"{type(windows).__name__}."
        )
    if kv_heads is not None and len(windows) != kv_heads:
        raise ValueError(
            f"windows must have one entry for each of the {kv_heads} key-value heads, but got "
            f"{len(windows)}: {_spelt(windows)}."
        )
    checked = tuple(0 if w is None else _window(w, i) for i, w in enumerate(windows))
    return checked if any(checked) else None


def _window(window: Any, entry: int) -> int:
    name = f"windows[{entry}]"
    if isinstance(window, bool) or not isinstance(window, Integral):
        raise TypeError(f"{name} must be an int or None, but got {window!r} of type {type(window).__name__}.")
    window = int(window)
    if window < 1:
        raise ValueError(
            f"{name} must be at least 1 (a window of 1 sees its own position alone), but got {window}; None "
            "means no window."
        )
    if window > NARROW and window % CHUNK:
        below = window // CHUNK * CHUNK
        nearest = min((below, below + CHUNK), key=lambda w: abs(w - window))
        raise ValueError(
            f"{name} must be a multiple of {CHUNK} above {NARROW}, but got {window}; the nearest is "
            f"{nearest}."
        )
    return window


def public(windows: Windows | None) -> tuple[int | None, ...] | None:
    """As users write them: None for a head without a window."""
    return None if windows is None else tuple(w or None for w in windows)


def _spelt(windows: Sequence[Any]) -> str:
    return "(" + ", ".join(map(str, windows)) + ")"


def same_windows(given: Windows | None, of_state: Windows | None) -> None:
    if given != of_state:
        spelt = ["none" if w is None else _spelt(public(w) or ()) for w in (of_state, given)]
        raise ValueError(f"state was made with windows {spelt[0]}, but this call has windows {spelt[1]}.")


def windowed_heads(windows: Windows) -> list[WindowedHead]:
    found, row = [], 0
    for head, window in enumerate(windows):
        if window:
            found.append(WindowedHead(head, window, slice(row, row + window - 1)))
            row += window - 1
    return found


def state_rows(windows: Windows | None) -> int:
    """Keys and values that all heads with a window carry together."""
    return sum(w - 1 for w in windows or () if w)


def fits_step(windows: Windows) -> bool:
    """Whether the kernel of a step (ops/gpu/windows/step.py) can number these heads, their windows and their
    places in the state: it has 12, 24 and 26 bits for them. Plain operations serve what it cannot."""
    return len(windows) <= 2**12 and max(windows) < 2**24 and sum(windows) < 2**26


def plain_heads(windows: Windows) -> list[slice]:
    """The key heads without a window, neighbours together."""
    groups: list[slice] = []
    for head, window in enumerate(windows):
        if window:
            continue
        if groups and groups[-1].stop == head:
            groups[-1] = slice(groups[-1].start, head + 1)
        else:
            groups.append(slice(head, head + 1))
    return groups


class StateRows(NamedTuple):
    """Of each of the R rows of keys in a state, [R]: which row of its head it is, how many rows that head
    has, and which is the first of them."""

    row: Tensor
    size: Tensor
    first: Tensor


def rows_of_state(windows: Windows, device: torch.device) -> StateRows:
    heads = [(window - 1, rows.start) for _, window, rows in windowed_heads(windows)]
    with torch.inference_mode(False):
        return StateRows(
            torch.cat([torch.arange(n, device=device) for n, _ in heads]),
            torch.cat([torch.full((n,), n, device=device) for n, _ in heads]),
            torch.cat([torch.full((n,), first, device=device) for n, first in heads]),
        )


_kept_rows = cache(rows_of_state)


def rotated_rows(keys: Tensor, values: Tensor, windows: Windows, by: Tensor) -> tuple[Tensor, Tensor]:
    """Keys [B, R, D] and values [B, R, Dv] of a state, the rows of each head rotated by `by` [B]: row r
    of a head is what was its row (r + by) mod (W - 1).

    In a state the key of position j is in row j mod (W - 1) of its head, so that a step in place writes one
    row and moves none. Rotated by the positions of the next tokens, the oldest is first; rotated back by
    them, what has the oldest first is as in a state."""
    if keys.shape[1] == 0:
        return keys, values
    # What is made in a trace, a transform or a capture is not kept: it belongs there.
    kept = not is_traced(keys, values, by) and not (keys.is_cuda and torch.cuda.is_current_stream_capturing())
    of = (_kept_rows if kept else rows_of_state)(windows, keys.device)
    index = ((of.row + by[:, None]) % of.size + of.first)[..., None]
    return keys.gather(1, index.expand_as(keys)), values.gather(1, index.expand_as(values))


def last_keys(args: AttentionArgs, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """What heads with a window carry after this call: keys [B, R, D] and values [B, R, Dv], oldest first,
    zeros where nothing was. `lengths` [B]: tokens of each row, None where all are."""
    assert args.windows is not None
    if args.cu_seqlens is not None:
        lengths = args.cu_seqlens.diff().to(torch.int64)
    found: list[tuple[Tensor, Tensor]] = []
    for head, window, rows in windowed_heads(args.windows):
        pair = []
        for x, past in ((args.k, args.past_keys), (args.v, args.past_values)):
            new = x[:, :, head]
            if args.key_mask is not None:
                new = new.masked_fill(~args.key_mask[..., None], 0)
            old = new.new_zeros((args.rows, window - 1, x.shape[3])) if past is None else past[:, rows]
            pair.append(last_rows(old, new, lengths, args.cu_seqlens))
        found.append((pair[0], pair[1]))
    keys, values = zip(*found, strict=True)
    return torch.cat(keys, 1), torch.cat(values, 1)


def last_rows(old: Tensor, new: Tensor, lengths: Tensor | None, cu_seqlens: Tensor | None = None) -> Tensor:
    """The last n of the rows `old` [B, n, ...] followed by `new` [B, T, ...] (packed: [1, T, ...]), or by the
    first `lengths` [B] of them."""
    n, length = old.shape[1], new.shape[1]
    if lengths is None:
        return torch.cat((old[:, min(length, n) :], new[:, max(0, length - n) :]), 1)
    if n == 0:
        return old
    index = lengths[:, None] + torch.arange(n, device=new.device)  # among old and new together
    index = index.view(*index.shape, *(1,) * (old.dim() - 2))
    from_old = old.gather(1, index.clamp_max(n - 1).expand_as(old))
    if length == 0:
        return from_old
    of_new = (index - n).clamp_min(0)
    if cu_seqlens is None:
        from_new = new.gather(1, of_new.clamp_max(length - 1).expand_as(old))
    else:
        first = cu_seqlens[:-1, None].to(torch.int64)
        from_new = new[0, (first + of_new.flatten(1)).clamp_max(length - 1)]
    return torch.where(index < n, from_old, from_new)


class Extended(NamedTuple):
    """A call whose carried keys and values are put in front of its keys.

    args: the extended call; k and v are undefined in heads without a window.
    past: rows that were put in front (of each document).
    tokens: packed documents: where each token of the call went, None otherwise.
    """

    args: AttentionArgs
    past: int
    tokens: Tensor | None

    def queries(self, x: Tensor, along: int = 1) -> Tensor:
        """A tensor along the queries of the call, as the extended one has it: zeros in front of a
        document."""
        if self.tokens is None:
            return x
        shape = list(x.shape)
        shape[along] = self.args.q.shape[1]
        return x.new_zeros(shape).index_copy(along, self.tokens, x)

    def heads_of(self, x: Tensor, head: WindowedHead) -> tuple[Tensor, Tensor]:
        """What a tensor along the extended keys holds for the past [B, W - 1, .] of a head, and for the keys
        of the call [B, T, .]."""
        mine, n = x[:, :, head.head], head.window - 1
        if self.tokens is None:
            return mine[:, self.past - n : self.past], mine[:, self.past :]
        assert self.args.cu_seqlens is not None
        first = self.args.cu_seqlens[:-1, None].to(torch.int64) + (self.past - n)
        return mine[0, first + torch.arange(n, device=x.device)], mine[:, self.tokens]


def extended(args: AttentionArgs) -> Extended:
    """The call as its heads with windows see it, without a state."""
    windows = args.windows
    assert windows is not None
    args = args.but(numerator=None, denominator=None, positions=None, return_state=False)
    if args.past_keys is None or args.past_values is None:
        return Extended(args, 0, None)
    past = max(windows) - 1
    k, v, tokens = args.k, args.v, None
    rows, length = k.shape[0], k.shape[1]
    first: Tensor | None = None
    if args.cu_seqlens is None:
        shape = (rows, past + length)
    else:
        bounds = args.cu_seqlens.to(torch.int64)
        token = torch.arange(length, device=k.device)
        tokens = token + torch.bucketize(token, bounds[1:], right=True).add_(1).mul_(past)
        bounds = bounds + past * torch.arange(len(bounds), device=k.device)
        shape, first = (1, length + past * args.rows), bounds[:-1, None]
    k_all, v_all = (x.new_zeros((*shape, *x.shape[2:])) for x in (k, v))
    for x, new, old in ((k_all, k, args.past_keys), (v_all, v, args.past_values)):
        if tokens is None:
            x[:, past:] = new
        else:
            x[:, tokens] = new
        for head, window, at in windowed_heads(windows):
            if first is None:
                x[:, past - window + 1 : past, head] = old[:, at]
            else:
                x[0, first + (past - window + 1) + torch.arange(window - 1, device=k.device), head] = old[
                    :, at
                ]
    mask = args.key_mask
    if mask is not None:
        mask = torch.cat((mask.new_ones((rows, past)), mask), 1)
    changes = {"k": k_all, "v": v_all, "key_mask": mask, "past_keys": None, "past_values": None}
    if tokens is None:
        return Extended(args.but(**changes, query_offset=args.query_offset + past), past, None)
    made = Extended(args.but(**changes, q=k_all, cu_seqlens=bounds), past, tokens)
    return made._replace(args=made.args.but(q=made.queries(args.q)))
