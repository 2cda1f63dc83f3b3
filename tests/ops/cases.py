"""Inputs for the operator's tests, and the measure of how far two results are apart."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cosformer import CosformerState, cosformer_attention

KINDS = {
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
        return Case({n: x.to(dtype if n in "qkv" else wide) for n, x in self.tensors.items()}, self.options)

    def on(self, device: str) -> "Case":
        options = {n: x.to(device) if hasattr(x, "to") else x for n, x in self.options.items()}
        return Case({n: x.to(device) for n, x in self.tensors.items()}, options)

    def call(self, backend: str, **more: Any):
        """out, or (out, state) where the options ask for it."""
        t = self.tensors
        options = self.options | more
        if "numerator" in t:
            state = options["state"]
            options["state"] = CosformerState(
                t["numerator"], t["denominator"], state.positions, state.seen, state.horizon
            )
        return cosformer_attention(t["q"], t["k"], t["v"], backend=backend, **options)

    def results(self, backend: str) -> dict[str, Tensor]:
        """All values, and the gradients of a fixed random function of them."""
        leaves = {n: x.detach().clone().requires_grad_() for n, x in self.tensors.items()}
        made = Case(leaves, self.options).call(backend)
        values = {"out": made} if isinstance(made, Tensor) else {
            "out": made[0], "numerator'": made[1].numerator, "denominator'": made[1].denominator
        }  # fmt: skip
        weights = torch.Generator().manual_seed(7)
        grads = torch.autograd.grad(
            list(values.values()),
            list(leaves.values()),
            [torch.randn(x.shape, generator=weights, dtype=torch.float64).to(x) for x in values.values()],
        )
        return values | {"d" + n: g for n, g in zip(leaves, grads, strict=True)}


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
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        tensors["numerator"] = torch.randn(rows, kv_heads, 2, dim, value_dim, dtype=wide)
        tensors["denominator"] = torch.rand(rows, kv_heads, 2, dim, dtype=wide)
        positions = torch.randint(0, max(tk, 40), (rows,))
        options["state"] = CosformerState(
            tensors["numerator"],
            tensors["denominator"],
            positions,
            int(positions.max()),
            float(options["horizon"]),
        )
        options["return_state"] = True
    return Case(tensors, options)


def distance(a: Tensor, b: Tensor) -> float:
    """Relative to b, or absolute where b is nearly nothing (a gradient that cancels, say)."""
    if b.numel() == 0:
        return 0.0
    a, b = a.detach().double().cpu(), b.detach().double().cpu()
    return float((a - b).norm() / b.norm().clamp_min(1))
