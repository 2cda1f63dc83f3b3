"""Inputs for the operator's tests, and the measure of how far two results are apart."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from cosformer import CosformerState, cosformer_attention

Windows = Sequence[int | None] | None
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mask": {"mask": True},
    "packed": {"documents": 5},
    "state": {"state": True},
    "mask+state": {"mask": True, "state": True},
    "packed+state": {"documents": 5, "state": True},
}


@dataclass
class Case:
    """A call of the operator: tensors that want gradients, and everything else."""

    tensors: dict[str, Tensor]
    options: dict[str, Any] = field(default_factory=dict)

    def to(self, dtype: torch.dtype) -> "Case":
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        sums = ("numerator", "denominator")
        return Case({n: x.to(wide if n in sums else dtype) for n, x in self.tensors.items()}, self.options)

    def on(self, device: str) -> "Case":
        options = {n: x.to(device) if hasattr(x, "to") else x for n, x in self.options.items()}
        return Case({n: x.to(device) for n, x in self.tensors.items()}, options)

    def call(self, backend: str, **more: Any) -> Any:
        """out, or (out, state) where the options ask for it."""
        t = self.tensors
        options = self.options | more
        if "numerator" in t:
            carried = {n: t[n] for n in ("numerator", "denominator", "keys", "values") if n in t}
            options["state"] = replace(options["state"], **carried)
        return cosformer_attention(t["q"], t["k"], t["v"], backend=backend, **options)

    def results(self, backend: str) -> dict[str, Tensor]:
        """All values, and the gradients of a fixed random function of them."""
        leaves = {n: x.detach().clone().requires_grad_() for n, x in self.tensors.items()}
        made = Case(leaves, self.options).call(backend)
        values = {"out": made if isinstance(made, Tensor) else made[0]}
        if not isinstance(made, Tensor):
            values |= {f"{n}'": getattr(made[1], n) for n in ("numerator", "denominator", "keys", "values")}
        values = {n: x for n, x in values.items() if x is not None and (x.numel() or x.requires_grad)}
        weights = torch.Generator().manual_seed(7)
        grads = torch.autograd.grad(
            list(values.values()),
            list(leaves.values()),
            [torch.randn(x.shape, generator=weights, dtype=torch.float64).to(x) for x in values.values()],
            allow_unused=True,  # sums of a state where every head has a window
        )
        return values | {"d" + n: g for n, g in zip(leaves, grads, strict=True) if g is not None}


def make(
    *,
    batch: int = 2,
    tq: int = 50,
    tk: int | None = None,
    heads: int = 2,
    kv_heads: int | None = None,
    dim: int = 16,
    value_dim: int | None = None,
    dtype: torch.dtype = torch.float64,
    mask: bool = False,
    documents: int = 0,
    state: bool = False,
    **options: Any,
) -> Case:
    tk = tq if tk is None else tk
    kv_heads, value_dim = kv_heads or heads, value_dim or dim
    batch = 1 if documents else batch
    tensors = {
        "q": torch.randn(batch, tq, heads, dim, dtype=dtype),
        "k": torch.randn(batch, tk, kv_heads, dim, dtype=dtype),
        "v": torch.randn(batch, tk, kv_heads, value_dim, dtype=dtype),
    }
    options.setdefault("horizon", 4 * (tq + tk) + 40)
    if mask:
        options["key_mask"] = torch.rand(batch, tk) > 0.4
    if documents:
        cuts = torch.randint(0, tq + 1, (documents - 1,)).sort().values
        options["cu_seqlens"] = torch.cat([cuts.new_zeros(1), cuts, cuts.new_full((1,), tq)])
    if state:
        rows = documents or batch
        positions = torch.randint(0, max(tk, 40), (rows,))
        tensors |= carried(rows, kv_heads, dim, value_dim, dtype, options.get("windows"))
        options["state"] = state_of(tensors, positions, options["horizon"], options.get("windows"))
        options["return_state"] = True
    return Case(tensors, options)


def carried(
    rows: int, kv_heads: int, dim: int, value_dim: int, dtype: torch.dtype, windows: Windows
) -> dict[str, Tensor]:
    """The tensors of a random state."""
    wide = torch.promote_types(dtype, torch.float32)
    plain = kv_heads if windows is None else sum(w is None for w in windows)
    past = sum(w - 1 for w in windows or () if w)
    tensors = {
        "numerator": torch.randn(rows, plain, 2, dim, value_dim, dtype=wide),
        "denominator": torch.rand(rows, plain, 2, dim, dtype=wide),
    }
    if plain < kv_heads:
        tensors["keys"] = torch.randn(rows, past, dim, dtype=torch.float64).to(dtype)
        tensors["values"] = torch.randn(rows, past, value_dim, dtype=torch.float64).to(dtype)
    return tensors


def state_of(
    tensors: dict[str, Tensor], positions: Tensor, horizon: float, windows: Windows
) -> CosformerState:
    unbounded = windows is not None and None not in windows
    windowed = windows is not None and any(windows)
    return CosformerState(
        tensors["numerator"], tensors["denominator"], positions, int(positions.max()),
        None if unbounded else float(horizon), tensors.get("keys"), tensors.get("values"),
        tuple(windows or ()) if windowed else None,
    )  # fmt: skip


def distance(a: Tensor, b: Tensor) -> float:
    """The largest error of a row (along the last axis), relative to that row and to the typical row of its
    tensor together; absolute where b is nearly nothing (a gradient that cancels, say).

    A norm over everything would not see a few rows: ten of 65,536 could be zero."""
    if b.numel() == 0:
        return 0.0
    a, b = a.detach().double().cpu(), b.detach().double().cpu()
    rows = b.norm(dim=-1)
    error = (a - b).norm(dim=-1) / (rows + rows.square().mean().sqrt().clamp_min(1))
    return float(error.nan_to_num(torch.inf).max())


def norm_distance(a: Tensor, b: Tensor) -> float:
    """Of all numbers together, relative to b."""
    a, b = a.detach().double().cpu(), b.detach().double().cpu()
    return float((a - b).norm() / b.norm().clamp_min(1))


def errors(a: Tensor, b: Tensor) -> tuple[float, float]:
    """On the whole, and of the worst row."""
    return norm_distance(a, b), distance(a, b)


@contextmanager
def uncorrected() -> Iterator[None]:
    """The chunked backend as plain arithmetic, with the rounding that it else takes out of gradients that
    cancel: the measure for kernels that do not correct them (docs/limits.md, "Gradients that cancel")."""

    def nothing(*_: Any) -> None:
        return None

    where = "cosformer.ops.chunked"
    with patch(f"{where}.attention.residual", nothing), patch(f"{where}.windowed.residual", nothing):
        yield


def is_as_good_as(
    ours: Tensor, plain: Tensor, truth: Tensor, floor: float, instead: tuple[float, float] = (0.0, 0.0)
) -> bool:
    """The rule for float32 and below: on the whole at most twice the error of plain arithmetic in the same
    type, and in no row more than four times its worst; `floor` is what one rounding costs. Plain half
    precision overflows now and then: then the errors `instead` count. Rows that the type cannot hold (a
    gradient divided by eps, say) are not compared."""
    rows = truth.abs().amax(-1).cpu() <= torch.finfo(ours.dtype).max / 100 if truth.numel() else None
    if rows is None or not rows.any():
        return truth.numel() == 0
    ours, plain, truth = (x.detach().cpu()[rows] for x in (ours, plain, truth))
    if not ours.isfinite().all():
        return False
    allowed = errors(plain, truth) if plain.isfinite().all() else instead
    return all(
        error <= factor * max(of_plain, floor)
        for error, of_plain, factor in zip(errors(ours, truth), allowed, (2, 4), strict=True)
    )


def is_close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """On the whole within `tolerance`, and in no row ten times that: half precision of a row whose terms
    cancel is that much worse than of the whole, and a row that is wrong is off by a half and more."""
    return norm_distance(a, b) <= tolerance and distance(a, b) <= 10 * tolerance
