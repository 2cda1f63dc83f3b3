"""The operator over a sequence that is cut into shards, one on each rank of a group.

Heads without a window: each rank sums its own keys and values into a state (S, z), all states are gathered,
and a rank adds those of the ranks its queries see: one message whose size does not depend on the length
(LASP-2, Sun et al., 2025, arXiv:2502.07563). Heads with a window W: a shard gets the W - 1 keys and values
before it (and behind it, where attention looks both ways) from its neighbours.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.distributed.exchange import Exchange, tie
from cosformer.distributed.shard import Part, Shard
from cosformer.ops import CosformerState, cosformer_attention
from cosformer.ops.windows import check_windows, public


class _Heads(NamedTuple):
    """Key heads with windows, or those without."""

    numbers: list[int]
    all: int

    def of(self, x: Tensor) -> Tensor:
        """Those heads of q, k or v [B, T, heads, .]; neighbours as a view."""
        own = self.among(x)
        if own == list(range(own[0], own[-1] + 1)):
            return x[:, :, own[0] : own[-1] + 1]
        return x[:, :, own]

    def among(self, x: Tensor) -> list[int]:
        group = x.shape[2] // self.all
        return [n * group + i for n in self.numbers for i in range(group)]


class SplitAttention:
    """One call over a group. Building it with the keys and values sends what other ranks
    need of them; then it is called with the queries.

    Args:
        k, v: [B, L, Hk, .] of this shard.
        shard: its place in the sequence.
        key_mask: bool [B, L]; not with packed documents.
        lengths: int [B], how many columns of the whole sequence belong to each row.
        state: that of everything before the whole sequence, the same on every rank.
        causal, horizon, windows, eps, backend, return_state: as in `cosformer_attention`, all given.
    """

    def __init__(
        self,
        k: Tensor,
        v: Tensor,
        shard: Shard,
        *,
        causal: bool,
        horizon: float | None,
        windows: Sequence[int | None] | None = None,
        key_mask: Tensor | None = None,
        lengths: Tensor | None = None,
        eps: float = 1e-6,
        state: CosformerState | None = None,
        return_state: bool = False,
        backend: str = "auto",
    ):
        self.shard, self.causal, self.state, self.return_state = shard, causal, state, return_state
        self.lengths = lengths
        of_heads = check_windows(windows, k.shape[2]) or (0,) * k.shape[2]
        self.windows, self.windows_given = of_heads, windows
        self.plain = _Heads([i for i, w in enumerate(of_heads) if not w], k.shape[2])
        self.windowed = _Heads([i for i, w in enumerate(of_heads) if w], k.shape[2])
        self.horizon = horizon if self.plain.numbers else None
        # Bidirectional rows see the same everywhere: the sums over all ranks.
        self.sums_are_whole = not causal and shard.packed is None
        self.common: dict[str, Any] = {"eps": eps, "backend": backend}
        if lengths is not None:
            column = torch.arange(shard.start, shard.stop, device=k.device)
            real = column < lengths[:, None]
            key_mask = real if key_mask is None else key_mask & real
        self.key_mask, self.k, self.v = key_mask, k, v
        reach = max(of_heads) - 1 if self.windowed.numbers else 0
        senders, receivers = shard.routes(causal)
        self.exchange = Exchange(shard.group, senders, receivers, before=reach, behind=0 if causal else reach)
        sums = torch.stack(self._own_sums()) if self.plain.numbers else None
        edge = None
        if reach > 0:
            edge = torch.cat([self.windowed.of(x) for x in (k, v)], -1)
            if key_mask is not None:
                edge = edge.masked_fill(~key_mask[..., None, None], 0)
        self.exchanges = sums is not None or edge is not None
        if self.exchanges:
            self.exchange.begin(sums, edge)

    def __call__(self, q: Tensor) -> tuple[Tensor, "Found | None"]:
        """out [B, L, H, Dv], and the state after the tokens of this rank where it is asked for."""
        sums, before, behind = self.exchange.end() if self.exchanges else (None, None, None)
        out_plain = out_windowed = None
        found = Found()
        if self.windowed.numbers:
            out_windowed, found.windowed, found.windowed_documents = self._windowed(q, before, behind)
        if self.plain.numbers:
            assert sums is not None
            out_plain, found.plain = self._plain(q, sums)
        if out_plain is None or out_windowed is None:
            out = out_windowed if out_plain is None else out_plain
            assert out is not None
        else:
            order = torch.tensor(self.plain.among(q) + self.windowed.among(q), device=q.device).argsort()
            out = torch.cat([out_plain, out_windowed], 2).index_select(2, order)
        return tie(out, sums, before, behind), found if self.return_state else None

    def _own_sums(self) -> list[Tensor]:
        """The state of this rank's own keys alone, for each slot that is sent."""
        k, v = self.plain.of(self.k), self.plain.of(self.v)
        query = k.new_zeros((k.shape[0], 1, *k.shape[2:]))  # only the state is needed, not the output
        made: dict[int, Tensor] = {}
        parts = self.shard.sent(self.causal)
        for part in parts:
            if part.documents.start not in made:
                columns = slice(part.start, part.stop)
                _, after = cosformer_attention(
                    query, k[:, columns], v[:, columns], horizon=self.horizon, key_mask=self._mask(columns),
                    state=self._before(part.documents, part.offset, None), return_state=True, **self.common,
                )  # fmt: skip
                made[part.documents.start] = _joined(after)
        return [made[part.documents.start] for part in parts]

    def _plain(self, q: Tensor, sums: Tensor) -> tuple[Tensor, Tensor | None]:
        """Heads without a window: out, and the sums after each document of this shard."""
        q, k, v = (self.plain.of(x) for x in (q, self.k, self.v))
        if self.sums_are_whole:
            k, v = k[:, :0], v[:, :0]
        outs, after = [], []
        for part in self.shard.parts(self.causal):
            columns = slice(part.start, part.stop)
            result = cosformer_attention(
                q[:, columns], k[:, columns], v[:, columns], causal=self.causal, horizon=self.horizon,
                key_mask=None if self.sums_are_whole else self._mask(columns),
                cu_seqlens=_bounds(part.bounds, q.device),
                state=self._incoming(part, sums), return_state=self.return_state, **self.common,
            )  # fmt: skip
            if isinstance(result, Tensor):
                outs.append(result)
            else:
                outs.append(result[0])
                after.append(_joined(result[1]))
        out = outs[0] if len(outs) == 1 else torch.cat(outs, 1)
        return out, torch.cat(after) if after else None

    def _incoming(self, part: Part, sums: Tensor) -> CosformerState | None:
        """The state before a part: from the state of the call, and from other ranks."""
        initial = None
        if self.state is not None:
            initial = _joined(self.state)
            initial = initial if self.shard.packed is None else initial[part.documents]
        for slot in part.slots:
            initial = sums[slot] if initial is None else initial + sums[slot]
        return None if initial is None else self._before(part.documents, part.offset, initial)

    def _before(self, documents: slice, offset: int, sums: Tensor | None) -> CosformerState:
        """The state with these sums (zeros if None) before the token at position `offset`."""
        rows = documents.stop - documents.start if self.shard.packed is not None else self.k.shape[0]
        dim, value_dim, accum_dtype = self.k.shape[3], self.v.shape[3], _accum_dtype(self.k)
        if sums is None:
            sums = self.k.new_zeros((rows, len(self.plain.numbers), 2, dim, value_dim + 1), dtype=accum_dtype)
        positions = self.k.new_full((rows,), offset, dtype=torch.int64)
        seen = offset
        if self.state is not None:
            own = self.state.positions
            positions = positions + (own if self.shard.packed is None else own[documents])
            seen += self.state.seen
        if self.lengths is not None and self.horizon is not None:
            # Padding may be beyond the horizon; that no token is was checked for all ranks.
            seen = min(seen, max(0, int(self.horizon) + 1 - self.shard.length))
        return CosformerState(sums[..., :-1], sums[..., -1], positions, seen, self.horizon)

    def _windowed(
        self, q: Tensor, before: Tensor | None, behind: Tensor | None
    ) -> tuple[Tensor, CosformerState | None, slice]:
        """Heads with a window: the call over the tokens of this rank and the neighbours within the window;
        the state is that at the end of each document among them."""
        shard, windows = self.shard, [self.windows[i] for i in self.windowed.numbers]
        q, k, v = (self.windowed.of(x) for x in (q, self.k, self.v))
        if self.key_mask is not None:
            k, v = (x.masked_fill(~self.key_mask[..., None, None], 0) for x in (k, v))
        left = right = 0
        if before is not None and behind is not None:
            left, right = before.shape[1], behind.shape[1]
            around = [x.split([k.shape[3], v.shape[3]], -1) for x in (before, behind)]
            k, v = (torch.cat([around[0][i], x, around[1][i]], 1) for i, x in enumerate((k, v)))
        start, stop = shard.start - left, shard.stop + right
        how: dict[str, Any] = {"causal": self.causal, "windows": windows, "return_state": self.return_state}
        documents = slice(0, 1)
        if shard.packed is None:
            how |= {"query_offset": left, "state": self._past(slice(0, k.shape[0]), start, windows)}
            if self.lengths is not None:
                how["lengths"] = (self.lengths - start).clamp(0, stop - start)
        else:
            documents, bounds = shard.cut(start, stop)
            how["cu_seqlens"] = _bounds(bounds, q.device)
            how["state"] = self._past(documents, start, windows)
            q = F.pad(q, (0, 0, 0, 0, left, right))  # a packed row has a query for each key
        result = cosformer_attention(q, k, v, **how, **self.common)
        out, after = (result, None) if isinstance(result, Tensor) else result
        if shard.packed is not None:
            out = out[:, left : left + shard.length]
        return out, after, documents

    def _past(self, rows: slice, start: int, windows: Sequence[int]) -> CosformerState | None:
        """Keys and values before the whole sequence. Documents that begin before `start`, the first of the
        neighbouring tokens, cannot see them: there are at least W - 1 tokens between."""
        state = self.state
        if state is None or state.keys is None or state.values is None:
            return None
        if self.shard.packed is None and start > 0:
            return None
        keys, values, positions = state.keys[rows], state.values[rows], state.positions[rows]
        empty = keys.new_zeros((len(keys), 0, 2, keys.shape[2]), dtype=_accum_dtype(self.k))
        numerator = empty.new_zeros((*empty.shape, values.shape[2]))
        return CosformerState(
            numerator, empty, positions, state.seen, None, keys, values, public(tuple(windows))
        )

    def _mask(self, columns: slice) -> Tensor | None:
        return None if self.key_mask is None else self.key_mask[:, columns]


class Found:
    """What a rank knows of the state after its tokens.

    Attributes:
        plain: sums [rows, Hn, 2, D, Dv + 1], of the rows of the batch or the documents of the shard.
        windowed: the state of the heads with a window, and which documents its rows are.
    """

    plain: Tensor | None = None
    windowed: CosformerState | None = None
    windowed_documents: slice = slice(0, 0)


def _joined(state: CosformerState) -> Tensor:
    return torch.cat([state.numerator, state.denominator.unsqueeze(-1)], -1)


def _bounds(bounds: tuple[int, ...] | None, device: torch.device) -> Tensor | None:
    return None if bounds is None else torch.tensor(bounds, device=device)


def _accum_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
