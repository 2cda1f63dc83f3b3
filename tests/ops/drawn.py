"""Calls of the operator drawn at random: whatever the arguments allow together. Hypothesis draws some in the
tests, and a seeded generator thousands in a campaign."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import torch

from tests.ops.cases import Case, carried, state_of

T = TypeVar("T")
LENGTHS = (*range(1, 13), *2 * (31, 63, 64, 65, 129, 200))
WINDOWS = (*6 * (None,), *range(1, 13), 31, 63, 64, 65, 128, 200, 256, 320, 512)
LAYOUTS = ("plain", "heads first", "gaps", "sliced", "one row for all")


class Pick(Protocol):
    """Who draws."""

    def integer(self, low: int, high: int) -> int: ...
    def one_of(self, choices: Sequence[T]) -> T: ...


def laid_out(pick: Pick, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of this shape in one of several memory layouts."""
    x = torch.randn(*shape, dtype=torch.float64).to(dtype)
    layout = pick.one_of(LAYOUTS)
    if layout == "heads first":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "gaps":
        return torch.stack([x, torch.full_like(x, torch.nan)], -1)[..., 0]
    if layout == "sliced":
        padded = torch.full((shape[0], shape[1] + 3, *shape[2:]), torch.nan, dtype=dtype)
        padded[:, 2:-1] = x
        return padded[:, 2:-1]
    return x[:1].expand_as(x) if layout == "one row for all" else x


def call(
    pick: Pick, dtype: torch.dtype, windowed: bool = False, lengths: Sequence[int] = LENGTHS,
    windows: Sequence[int | None] = WINDOWS, narrowest: int = 1,
) -> Case:  # fmt: skip
    """Any call: causal or not; self, cross or packed; grouped heads, masks, offsets, states, windows."""
    torch.manual_seed(pick.integer(0, 2**31))
    flags = (False, True)
    causal, kind = pick.one_of(flags), pick.one_of(("self", "cross", "packed"))
    kv_heads, group = pick.integer(1, 3), pick.integer(1, 3)
    dim, value_dim = pick.integer(narrowest, 24), pick.integer(narrowest, 24)
    batch = 1 if kind == "packed" else pick.integer(1, 3)
    tq = pick.one_of(lengths)
    tk = pick.one_of(lengths) if kind == "cross" else tq
    has_state = pick.one_of(flags)
    options: dict[str, Any] = {"causal": causal}
    offset, rows = 0, batch
    if kind == "cross" and (pick.one_of(flags) or (causal and has_state)):
        first = -1 if causal and has_state else -tq - 5
        options["query_offset"] = offset = pick.integer(first, tk + 5)
    elif causal:
        offset = tk - tq
    if kind == "packed":
        cuts = sorted(pick.integer(0, tq) for _ in range(pick.integer(0, 6)))
        of = pick.one_of((torch.int32, torch.int64))
        options["cu_seqlens"] = torch.tensor([0, *cuts, tq], dtype=of)
        rows = len(cuts) + 1
    elif pick.one_of(flags):
        options["key_mask"] = torch.rand(batch, tk) < pick.one_of((0.0, 0.2, 0.7, 1.0))
    seen = torch.randint(0, 30, (rows,)) if has_state else torch.zeros(rows, dtype=torch.int64)
    furthest = max(int(seen.max()) + offset + tq - 1, tk - 1 - offset, 1)
    options["horizon"] = float(furthest + pick.one_of((0.5, 1, 100)))
    of_heads = None
    if windowed:
        of_heads = options["windows"] = tuple(pick.one_of(windows) for _ in range(kv_heads))
        if has_state and any(of_heads):  # earlier queries would see keys that the state no longer holds
            offset = options["query_offset"] = max(offset, 0)
            if kind == "packed":
                del options["query_offset"]
            furthest = max(int(seen.max()) + offset + tq - 1, tk - 1 - offset, 1)
            options["horizon"] = float(furthest + 7)
    tensors = {
        "q": laid_out(pick, batch, tq, kv_heads * group, dim, dtype=dtype),
        "k": laid_out(pick, batch, tk, kv_heads, dim, dtype=dtype),
        "v": laid_out(pick, batch, tk, kv_heads, value_dim, dtype=dtype),
    }
    if has_state:
        tensors |= carried(rows, kv_heads, dim, value_dim, dtype, of_heads)
        options["state"] = state_of(tensors, seen, options["horizon"], of_heads)
    if has_state or pick.one_of(flags):
        options["return_state"] = True
    return Case(tensors, options)
