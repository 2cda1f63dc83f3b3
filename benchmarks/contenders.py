"""Everybody in the race: the operator and its backends, PyTorch's softmax attention, the authors'
own way of writing cosFormer, and the same built on fast-transformers' C++ product.

All of them take the operator's layout, q, k, v [B, T, H, D], and give [B, T, H, D]: a contender that
wants another layout pays for the change itself, as its user would.
"""

import importlib.util
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

MODES = ("causal", "bidirectional")
PHASES = ("forward", "forward+backward")
EPS = 1e-6

Attend = Callable[[Tensor, Tensor, Tensor, bool], Tensor]


@dataclass(frozen=True)
class Shape:
    batch: int
    length: int
    heads: int
    dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_of_q(self) -> int:
        return self.batch * self.length * self.heads * self.dim * self.dtype.itemsize

    def inputs(self, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k, v and the gradient that comes in from above; the same for every contender."""
        generator = torch.Generator(self.device).manual_seed(seed)
        size = (self.batch, self.length, self.heads, self.dim)
        q, k, v, grad = (
            torch.randn(size, generator=generator, dtype=self.dtype, device=self.device) for _ in range(4)
        )
        return q, k, v, grad


def _nothing_to_prepare(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return q, k, v


def _needs_nothing(shape: Shape, causal: bool) -> int:
    return 0


@dataclass(frozen=True)
class Contender:
    name: str
    title: str
    attend: Attend
    computes: Literal["cosformer", "roughly cosformer", "softmax", "part"] = "cosformer"
    modes: tuple[str, ...] = MODES
    longest: int | None = None
    """Quadratic ones are not asked for more: hours would pass and the curve is known."""
    prepare: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] = _nothing_to_prepare
    """Done before the clock starts (only where a part of the work is timed alone)."""
    needs: Callable[[Shape, bool], int] = _needs_nothing
    """Bytes of a forward and backward pass, for those that would not fit."""
    forms: Mapping[str, Attend] = field(default_factory=dict)
    """Ways to write the same call, by name: the fastest counts. None: `attend` alone."""
    source: str = "benchmarks.contenders"
    """The module whose `find` knows this contender, for processes that measure it alone."""

    def each_form(self) -> "dict[str, Contender]":
        """The contender once in each form."""
        return {name: replace(self, attend=a) for name, a in self.forms.items()} or {"": self}

    def refuses(self, shape: Shape, mode: str, memory_limit: int) -> str | None:
        """Why this case is left out, or None; a mode it never claimed is left out in silence ('')."""
        if mode not in self.modes:
            return ""
        if self.longest is not None and shape.length > self.longest:
            return f"skipped: quadratic, timed up to {self.longest}"
        needs = self.needs(shape, mode == "causal")
        if needs > memory_limit:
            return f"skipped: needs {needs / 2**30:.0f} GiB"
        return None


class Work:
    """One contender on one set of inputs: the thing that is timed and whose memory is measured."""

    def __init__(
        self,
        contender: Contender,
        inputs: tuple[Tensor, Tensor, Tensor, Tensor],
        mode: str,
        phase: str,
    ):
        *qkv, self.grad = inputs
        self.attend, self.causal = contender.attend, mode == "causal"
        self.backward = phase == "forward+backward"
        q, k, v = (x.detach().requires_grad_(self.backward) for x in contender.prepare(*qkv))
        self.operands = (q, k, v)

    def __call__(self) -> tuple[Tensor, ...]:
        """The output, and with a backward pass the three gradients."""
        with torch.set_grad_enabled(self.backward):
            out = self.attend(*self.operands, self.causal)
        if not self.backward:
            return (out,)
        # Not every attention reads all three: what has no part has a gradient of zeros.
        gradients = torch.autograd.grad(out, self.operands, self.grad, materialize_grads=True)
        return (out.detach(), *gradients)


def softmax(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)


def features(x: Tensor, time: int = -2) -> Tensor:
    """[ReLU(x) sin, ReLU(x) cos] (.., T, .., 2D), the axis of T being `time`: positions from 1, M = T, angles
    in x's own type."""
    length = x.shape[time]
    angle = math.pi / 2 * torch.arange(1, length + 1, device=x.device).to(x.dtype) / length
    angle = angle.view(length, *(1,) * (-time - 1))
    x = x.relu()
    return torch.cat([x * angle.sin(), x * angle.cos()], dim=-1)


def authors_form(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """The equations of the authors' public module, in the order it takes them."""
    batch = q.shape[0]
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # (BH, T, D)
    q, k = features(q), features(k)  # (BH, T, 2D)
    if causal:
        kv = torch.einsum("nld,nlm->nldm", k, v).cumsum(dim=1)  # (BH, T, 2D, D)
        numerator = torch.einsum("nld,nldm->nlm", q, kv)
        denominator = torch.einsum("nld,nld->nl", q, k.cumsum(dim=1)).clamp_min(EPS)
        out = numerator / denominator.unsqueeze(-1)
    else:
        kv = torch.einsum("nld,nlm->ndm", k, v)
        scale = 1 / torch.einsum("nld,nd->nl", q, k.sum(dim=1)).clamp_min(EPS)
        out = torch.einsum("nld,ndm,nl->nlm", q, kv, scale)
    return out.unflatten(0, (batch, -1)).transpose(1, 2)


def _authors_memory(shape: Shape, causal: bool) -> int:
    """The outer products, their running sum and the gradients of both are alive together."""
    return 4 * 2 * shape.dim * shape.bytes_of_q if causal else 0


def _fast_transformers_features(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return features(q), features(k), v.contiguous()


def _fast_transformers(product: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    q, k, v = _fast_transformers_features(q, k, v)
    denominator = torch.einsum("bhtd,bhtd->bht", q, k.cumsum(dim=2)).clamp_min(EPS)
    return (product(q, k, v) / denominator.unsqueeze(-1)).transpose(1, 2)


def _bare_product(product: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    out: Tensor = product(q, k, v)
    return out.transpose(1, 2)


def operator(backend: str) -> Attend:
    """The subject of it all, on a named backend or on the one it chooses ("auto")."""
    from cosformer import cosformer_attention

    def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        out: Tensor = cosformer_attention(q, k, v, causal=causal, backend=backend)
        return out

    return attend


def find(shape: Shape) -> tuple[list[Contender], dict[str, str]]:
    """Who can run on this device in this dtype, and why the others cannot (name: reason)."""
    import cosformer

    cpu = shape.device.type == "cpu"
    found = [Contender("cosformer", "cosFormer", operator("auto"))]
    absent: dict[str, str] = {}
    for backend in cosformer.backends():
        name = f"cosformer[{backend.name}]"
        if not backend.available:
            absent[name] = backend.reason or "not available"
        elif not (cpu and backend.name == "chunked"):  # which is what "auto" means on a CPU
            limit = 2048 if backend.name == "reference" else None
            call = operator(backend.name)
            found.append(Contender(name, f"cosFormer {backend.name}", call, longest=limit))

    longest = 16384 if cpu else None
    found.append(Contender("sdpa", "softmax (SDPA)", softmax, computes="softmax", longest=longest))
    found.append(Contender("authors", "authors' form", authors_form, needs=_authors_memory))

    if importlib.util.find_spec("fast_transformers") is None:
        absent["fast-transformers"] = "pytorch-fast-transformers is not installed"
    elif not cpu or shape.dtype != torch.float32:
        absent["fast-transformers"] = "its C++ product is raced in float32 on the CPU only"
    else:
        from fast_transformers.causal_product import causal_dot_product as product

        whole, bare = partial(_fast_transformers, product), partial(_bare_product, product)
        found.append(Contender("fast-transformers", "fast-transformers", whole, modes=("causal",)))
        found.append(
            Contender(
                "causal_dot_product",
                "causal_dot_product",
                bare,
                computes="part",
                modes=("causal",),
                prepare=_fast_transformers_features,
            )
        )
    return found, absent
