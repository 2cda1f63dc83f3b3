"""What the attentions over a fixed sparse pattern share: the calls, and a state that knows positions."""

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from cosformer.attention.base import Attention, State
from cosformer.attention.gather import Relation, gathered_attention, masked_softmax
from cosformer.attention.growing import GrowingState
from cosformer.ops.one_token import StepWeights


@dataclass(frozen=True, slots=True)
class PositionedState(GrowingState):
    """keys [B, T, Hk, D] and values [B, T, Hk, Dv] seen so far, each with its position `at` [B, T], -1 where
    a key is masked: a pattern depends on distances, and padding has no position.

    `positions` [B] and `seen` as in `CosformerState`: the position of the next token of each row.
    """

    of_columns: ClassVar[dict[str, Any]] = {"at": -1}

    at: Tensor
    positions: Tensor
    seen: int

    def append(self, keys: Tensor, values: Tensor, mask: Tensor | None) -> "PositionedState":
        at = self.positions[:, None] + torch.arange(keys.shape[1], device=keys.device)
        if mask is not None:
            at = at.masked_fill(~mask, -1)
            keys, values = (x.masked_fill(~mask[..., None, None], 0) for x in (keys, values))
        return PositionedState(
            torch.cat([self.keys, keys], 1),
            torch.cat([self.values, values], 1),
            torch.cat([self.at, at], 1),
            self.positions + keys.shape[1],
            self.seen + keys.shape[1],
        )

    @classmethod
    def empty(cls, keys: Tensor, values: Tensor) -> "PositionedState":
        """Nothing seen yet, for keys and values like these."""
        none = torch.zeros(keys.shape[0], 0, dtype=torch.int64, device=keys.device)
        return cls(keys[:, :0], values[:, :0], none, none.sum(1), 0)

    def crop(self, length: int) -> "PositionedState":
        """Only the first `length` columns; exact, since every key is still there."""
        positions = self.positions - (self.at[:, length:] >= 0).sum(1)
        keys, values, at = (x[:, :length] for x in (self.keys, self.values, self.at))
        return PositionedState(keys, values, at, positions, int(positions.max()))


pytree.register_dataclass(
    PositionedState,
    field_names=["keys", "values", "at", "positions", "seen"],
    drop_field_names=[],
    serialized_type_name="cosformer.PositionedState",
)


class PatternAttention(Attention):
    """Softmax attention where each query sees the keys of a pattern that depends on positions alone.

    A whole sequence is computed by gathering, at the cost of the pattern. A call with a state computes scores
    for all carried keys and hides those outside the pattern: exact, at the cost of softmax attention with a
    cache.
    """

    @abstractmethod
    def relations(self, causal: bool, length: Tensor, columns: int) -> Sequence[Relation]:
        """The pattern in rows of `columns` columns; `length` [B or 1, 1, 1, 1, 1] is where each row's real
        tokens end."""

    def full_rows(self, causal: bool, length: Tensor, columns: int) -> Tensor | None:
        """Indices [B or 1, F] of the queries that see everything."""
        return None

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, key_mask: Tensor | None,
        state: PositionedState | None, return_state: bool, **never_asked: Any,
    ) -> tuple[Tensor, PositionedState | None]:  # fmt: skip
        if not causal and (state is not None or return_state):
            raise ValueError(
                f"attention {self.name!r} carries a state in causal calls alone, but causal is False: give "
                "the whole sequence at once, without state and return_state."
            )
        before = PositionedState.empty(k, v) if state is None else state
        after = before.append(k, v, key_mask) if state is not None or return_state else None
        if state is not None and after is not None:
            at = state.positions[:, None] + torch.arange(q.shape[1], device=q.device)
            out = self._look_back(q, at, after)
        else:
            length, columns = _lengths(k, key_mask), k.shape[1]
            out = gathered_attention(
                q,
                k,
                v,
                self.relations(causal, length, columns),
                causal=causal,
                key_mask=key_mask,
                full_rows=self.full_rows(causal, length, columns),
            )
        return out, after if return_state else None

    def attend_token(
        self, q: Tensor, k: Tensor, v: Tensor, state: PositionedState, weights: StepWeights, seen: int,
        into: PositionedState | None = None,
    ) -> tuple[Tensor, State]:  # fmt: skip
        if into is not state:
            return super().attend_token(q, k, v, state, weights, seen)
        state.write_token(k, v, weights)
        past = dataclasses.replace(state, positions=weights.positions + 1)
        return self._look_back(q, weights.positions[:, None], past), state

    def _look_back(self, q: Tensor, at: Tensor, past: PositionedState) -> Tensor:
        """q [B, Tq, H, D] at positions [B, Tq] over every carried key."""
        i, j = at[:, None, None, :, None], past.at[:, None, None, None]
        relations = self.relations(True, past.positions[:, None, None, None, None], past.at.shape[1])
        seen = (j >= 0) & (j <= i) & torch.stack([r.seen(i, j) for r in relations]).any(0)
        q = q.unflatten(2, (past.keys.shape[2], -1)) / math.sqrt(q.shape[3])
        weights = masked_softmax(torch.einsum("bthgd,bshd->bhgts", q, past.keys), seen)
        mixed = torch.einsum("bhgts,bshd->bthgd", weights.to(past.values.dtype), past.values)
        return mixed.flatten(2, 3)

    def state_size(
        self, length: int, *, num_kv_heads: int, head_dim: int, value_dim: int | None = None
    ) -> int:
        """Every key and every value, where a state is carried."""
        if not self.traits.recurrent:
            return 0
        return length * num_kv_heads * (head_dim + (head_dim if value_dim is None else value_dim))


def _lengths(k: Tensor, key_mask: Tensor | None) -> Tensor:
    """One more than the index of each row's last real key, [B or 1, 1, 1, 1, 1]."""
    index = torch.arange(1, k.shape[1] + 1, device=k.device)[None]
    found = index[:, -1] if key_mask is None else (index * key_mask).amax(1)
    return found[:, None, None, None, None]
