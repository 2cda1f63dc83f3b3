"""Checks in seconds that each backend computes correctly on this machine: values and gradients against the
paper's equation, which is written here a second time and computed in float64.

The error that is allowed is twice that of the same equation in the backend's own precision, and a few
roundings: the bound follows from the dtype.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from cosformer.ops import BackendStatus, backends, cosformer_attention
from cosformer.ops.backends import NotServed

HORIZON = 512.0
EPS = 1e-6


@dataclass(frozen=True)
class Verdict:
    """The result for one backend on one device.

    `cases` were computed; `refused` ones the backend does not support. `worst` is the largest ratio of an
    error to the one allowed: at most 1 is correct. `failed` names the case that was wrong, or says why the
    backend refused them all; None where all are correct.
    """

    backend: str
    device: str
    cases: int
    refused: int
    worst: float
    failed: str | None
    seconds: float

    @property
    def passed(self) -> bool:
        return self.failed is None


@dataclass(frozen=True)
class Case:
    """One call, small enough to be judged by the quadratic equation in float64."""

    name: str
    queries: int
    keys: int
    causal: bool
    heads: tuple[int, int] = (2, 2)
    dims: tuple[int, int] = (16, 16)
    padded: int = 0
    """Number of keys of the first row that are masked, and hold NaN."""
    documents: tuple[int, ...] = ()
    """Bounds of documents packed into one row."""
    cuts: tuple[int, ...] = ()
    """Where the sequence is cut, with the state carried over."""
    windows: tuple[int | None, ...] | None = None
    """The window of each key head."""


# A narrow band, one as wide as a tile, one through the states of chunks (texts are longer than it), and none.
WINDOWS = (3, 65, 320, None)

CASES = (
    Case("causal", 130, 130, True),
    Case("bidirectional", 130, 130, False),
    Case("one token", 1, 1, True),
    Case("cross-attention", 37, 90, False),
    Case("grouped heads of odd sizes", 65, 65, True, heads=(4, 2), dims=(24, 40)),
    Case("causal, padded with NaN", 63, 63, True, padded=9),
    Case("bidirectional, padded with NaN", 63, 63, False, padded=9),
    Case("packed documents", 100, 100, True, documents=(0, 7, 7, 71, 100)),
    Case("cut, with the state carried", 100, 100, True, cuts=(37,)),
    Case("cut, down to single tokens", 100, 100, True, cuts=(1, 64, 65)),
    Case("windows, causal", 390, 390, True, (4, 4), windows=WINDOWS),
    Case("windows, bidirectional, padded with NaN", 390, 390, False, (4, 4), padded=9, windows=WINDOWS),
    Case("windows, cut, with the state carried", 390, 390, True, (4, 4), cuts=(170,), windows=WINDOWS),
)


def check() -> list[Verdict]:
    """A verdict for each available backend on each device it is meant for.

    With one CPU thread: the cases are small, and on a busy machine threads would spend most of the time
    waiting."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [
            examine(backend.name, device)
            for backend in backends()
            if backend.available
            for device in devices(backend)
        ]
    finally:
        torch.set_num_threads(threads)


def devices(backend: BackendStatus) -> list[str]:
    """All of this machine, or its GPUs alone for kernels (which Triton's interpreter could run on a CPU, for
    tests and in minutes)."""
    gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return ["cpu", *gpus] if backend.name in ("chunked", "reference") else gpus


def examine(name: str, device: str) -> Verdict:
    """All cases on one backend and device, up to the first that is wrong."""
    began, worst, cases, refused = time.perf_counter(), 0.0, 0, 0
    failed = refusal = None
    for case, dtype in _cases(name, device):
        what = f"{case.name}, {str(dtype).removeprefix('torch.')}"
        try:
            ratio = _error_over_allowed(case, name, torch.device(device), dtype)
        except NotServed as error:
            refused, refusal = refused + 1, f"{what}: {error}"
            continue
        except (RuntimeError, ValueError) as error:
            failed = f"{what}: {str(error).splitlines()[0]}"
            break
        worst, cases = max(worst, ratio), cases + 1
        if not ratio <= 1:  # NaN is not right either
            failed = f"{what}: {ratio:.3g} times the error allowed"
            break
    return Verdict(
        name,
        device,
        cases,
        refused,
        worst,
        failed if cases else failed or refusal,
        time.perf_counter() - began,
    )


def _cases(name: str, device: str) -> Iterator[tuple[Case, torch.dtype]]:
    """In float32, and on a GPU in bfloat16 too, the only dtype of the kernels for Hopper; not for the
    reference, whose own rounding is the measure for the others."""
    for case in CASES:
        if name != "hopper":
            yield case, torch.float32
        if device != "cpu" and name != "reference":
            yield case, torch.bfloat16


def _error_over_allowed(case: Case, name: str, device: torch.device, dtype: torch.dtype) -> float:
    draw = torch.Generator().manual_seed(0)
    batch = 1 if case.documents or case.windows else 2
    (h, hk), (d, dv) = case.heads, case.dims
    shapes = ((case.queries, h, d), (case.keys, hk, d), (case.keys, hk, dv), (case.queries, h, dv))
    q, k, v, grad = (torch.randn(batch, *s, generator=draw).to(device, dtype) for s in shapes)
    mask = None
    if case.padded:
        mask = torch.ones(batch, case.keys, dtype=torch.bool, device=device)
        mask[0, : case.padded] = False
    equation = partial(_equation, case, mask)
    exact = q.double(), k.double(), v.double(), grad.double()
    true = _with_gradients(equation, *exact)
    # Gradients are differences: through the sum, less through its normaliser. A lone token's are zero, but
    # what is rounded is as large as their parts.
    sizes = [
        float(torch.maximum(a.abs().amax(), b.abs().amax()).clamp_min(1.0))
        for a, b in zip(true, _with_gradients(partial(equation, constant=True), *exact), strict=True)
    ]
    plain = _with_gradients(equation, q, k, v, grad)
    if mask is not None:
        k, v = (x.masked_fill(~mask[..., None, None], float("nan")) for x in (k, v))
    found = _with_gradients(partial(_operator, case, mask, name), q, k, v, grad)
    # Running sums round more often than the quadratic form; in half precision the difference is negligible.
    slack = (32 if dtype.itemsize >= 4 else 2) * torch.finfo(dtype).eps
    return max(
        _distance(f, t, size) / (2 * _distance(p, t, size) + slack)
        for f, p, t, size in zip(found, plain, true, sizes, strict=True)
    )


def _with_gradients(
    attend: Callable[[Tensor, Tensor, Tensor], Tensor], q: Tensor, k: Tensor, v: Tensor, grad: Tensor
) -> list[Tensor]:
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    out = attend(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, grad)]


def _distance(a: Tensor, b: Tensor, size: float) -> float:
    """The largest difference, over the size of what was summed."""
    return float((a.double() - b.double()).abs().amax()) / size


def _operator(case: Case, mask: Tensor | None, name: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if case.cuts:
        outs, state = [], None
        for a, b in pairwise((0, *case.cuts, case.keys)):
            out, state = cosformer_attention(
                q[:, a:b], k[:, a:b], v[:, a:b],
                causal=True, horizon=HORIZON, windows=case.windows, eps=EPS, state=state, return_state=True,
                backend=name,
            )  # fmt: skip
            outs.append(out)
        return torch.cat(outs, 1)
    bounds = torch.tensor(case.documents, device=q.device) if case.documents else None
    return cosformer_attention(
        q, k, v, causal=case.causal, horizon=HORIZON, windows=case.windows, key_mask=mask, cu_seqlens=bounds,
        eps=EPS, backend=name,
    )  # fmt: skip


def _equation(
    case: Case, mask: Tensor | None, q: Tensor, k: Tensor, v: Tensor, constant: bool = False
) -> Tensor:
    """w_ij = (ReLU(q_i) . ReLU(k_j)) cos((pi/2)(i - j)/M), and zero for what i must not see. A head with a
    window has W in place of M, and sees nothing from there on. With a normaliser that is taken as `constant`,
    gradients are those of the sum alone."""
    each = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(each, 2) for x in (k, v))
    i, j = (torch.arange(n, device=q.device) for n in (q.shape[1], k.shape[1]))
    distance = i[:, None] - j
    seen = distance >= 0 if case.causal else torch.ones_like(distance, dtype=torch.bool)
    if case.documents:
        starts = torch.tensor(case.documents[1:], device=q.device)
        of = torch.bucketize(i, starts, right=True)
        seen = seen & (of[:, None] == of)
    windows = [w for w in case.windows or (None,) * (q.shape[2] // each) for _ in range(each)]
    near = torch.stack([_cosine(distance, w, q.dtype) for w in windows]) * seen  # [H, Tq, Tk]
    weight = torch.einsum("bihd,bjhd->bhij", q.relu(), k.relu()) * near
    if mask is not None:
        weight = weight * mask[:, None, None]
    total = weight.sum(-1).clamp_min(EPS)
    if constant:
        total = total.detach()
    return torch.einsum("bhij,bjhe,bhi->bihe", weight, v, 1 / total)


def _cosine(distance: Tensor, window: int | None, dtype: torch.dtype) -> Tensor:
    cos = torch.cos(math.pi / 2 * distance.to(dtype) / (window or HORIZON))
    return cos if window is None else cos.masked_fill(distance.abs() >= window, 0)
