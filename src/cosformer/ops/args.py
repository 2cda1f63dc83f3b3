"""One call of the operator as an object: what the backends are given, and what the library's ops flatten."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

# How PyTorch's schemas spell the types of the fields below.
_SCHEMA = {
    Tensor: "Tensor",
    Tensor | None: "Tensor?",
    bool: "bool",
    int: "SymInt",
    float: "float",
    float | None: "float?",
    tuple[int, ...] | None: "int[]?",
}


@dataclass  # not frozen: that would cost more than all checks
class AttentionArgs:
    """A call after validation, in the order of the ops' arguments.

    Attributes:
        q, k, v: [B, Tq, H, D], [B, Tk, Hk, D], [B, Tk, Hk, Dv].
        key_mask, cu_seqlens: bool [B, Tk]; int [N + 1].
        numerator, denominator: the incoming sums of the heads without a window, [B, Hn, 2, D, Dv] and
            [B, Hn, 2, D].
        positions: int64 [B], positions seen before this call.
        causal, query_offset, eps: as `cosformer_attention`, all given.
        horizon: None means max(Tq, Tk). That is filled in late: a compiled graph that carried it as a number
            would be compiled again for every length.
        return_state: the outgoing sums are wanted.
        keep: a backward will follow; keep what it needs.
        past_keys, past_values: [B, R, D] and [B, R, Dv], the last W - 1 keys and values of every head with a
            window, one head after another (R is the sum of W - 1), oldest first; in a step, which overwrites
            them, as they lie in a state.
        windows: a number for every key head, 0 for a head without a window; None if no head has one.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    key_mask: Tensor | None
    cu_seqlens: Tensor | None
    numerator: Tensor | None
    denominator: Tensor | None
    positions: Tensor | None
    causal: bool
    query_offset: int
    horizon: float | None
    eps: float
    return_state: bool
    keep: bool
    past_keys: Tensor | None = None
    past_values: Tensor | None = None
    windows: tuple[int, ...] | None = None

    @classmethod
    def of_token(
        cls, q: Tensor, k: Tensor, v: Tensor, numerator: Tensor, denominator: Tensor, positions: Tensor,
        horizon: float | None, eps: float, past_keys: Tensor | None, past_values: Tensor | None,
        windows: tuple[int, ...] | None, key_mask: Tensor | None = None,
    ) -> "AttentionArgs":  # fmt: skip
        """A step of one token per row after a state, without gradients."""
        return cls(
            q, k, v, key_mask, None, numerator, denominator, positions, causal=True, query_offset=0,
            horizon=horizon, eps=eps, return_state=True, keep=False, past_keys=past_keys,
            past_values=past_values, windows=windows,
        )  # fmt: skip

    @classmethod
    def unflatten(cls, inputs: Sequence[Any]) -> "AttentionArgs":
        """From the arguments of an op: the last ones may be left out, and tuples come as lists."""
        args = cls(*inputs)
        if args.windows is not None:
            args.windows = tuple(args.windows)
        return args

    def flatten(self) -> tuple[Any, ...]:
        return (
            self.q, self.k, self.v, self.key_mask, self.cu_seqlens, self.numerator, self.denominator,
            self.positions, self.causal, self.query_offset, self.horizon, self.eps, self.return_state,
            self.keep, self.past_keys, self.past_values, self.windows,
        )  # fmt: skip

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.q.shape[2] // self.k.shape[2]

    @property
    def rows(self) -> int:
        """Of a state: rows of the batch, or packed documents."""
        return self.q.shape[0] if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1

    @property
    def accum_dtype(self) -> torch.dtype:
        """Of sums, denominators and states."""
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32

    @property
    def has_state(self) -> bool:
        """Whether sums come in or go out."""
        return self.return_state or self.numerator is not None

    @property
    def m(self) -> float:
        """The horizon, once it is filled in."""
        assert self.horizon is not None
        return self.horizon

    def but(self, **changes: Any) -> "AttentionArgs":
        return replace(self, **changes)


FIELDS = tuple(fields(AttentionArgs))
NAMES = tuple(f.name for f in FIELDS)
TENSORS = tuple(i for i, f in enumerate(FIELDS) if f.type in (Tensor, Tensor | None))


def schema() -> str:
    """The arguments of a forward op, as `torch.library` writes them."""
    parts = []
    for f in FIELDS:
        default = "=None" if f.default is None else ""
        parts.append(f"{_SCHEMA[f.type]} {f.name}{default}")  # type: ignore[index]
    return ", ".join(parts)
