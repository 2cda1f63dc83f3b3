"""No time is given for a wrong answer: what every contender has to pass before it is timed.

The judge is the paper's equation in float64, with its T x T square written out. The measure is
flash-attention's: a contender may err at most twice as much as that same square in its own dtype, and a few
roundings of that dtype more (8 of them, 1e-3 at most).
"""

import math
from typing import Any

import torch
from torch import Tensor

from benchmarks.contenders import EPS, MODES, Contender, Shape, Work

# One length inside a single chunk, one that fills several and leaves a remainder.
LENGTHS = (63, 1000)
PARTS = ("out", "dq", "dk", "dv")


def quadratic(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """(ReLU(q_i) . ReLU(k_j)) cos((pi/2)(i - j)/M) v_j over the sum of the weights, M = T."""
    length = q.shape[1]
    at = torch.arange(length, dtype=torch.float64, device=q.device)
    distance = at[:, None] - at[None, :]
    cosine = torch.cos(math.pi / 2 / length * distance).to(q.dtype)
    if causal:
        cosine = cosine.masked_fill(distance < 0, 0)
    weight = torch.einsum("bihd,bjhd->bhij", q.relu(), k.relu()) * cosine
    total = weight.sum(-1).clamp_min(EPS)
    return torch.einsum("bhij,bjhd->bihd", weight, v) / total.transpose(1, 2).unsqueeze(-1)


ROUGHLY = "roughly cosformer"  # what others compute with sums and eps of their own
_JUDGE = Contender("quadratic", "quadratic", quadratic)


def errors_of(got: tuple[Tensor, ...], true: tuple[Tensor, ...]) -> list[float]:
    """Largest error of each part, relative to its largest entry; NaN counts as infinite, equal as none."""
    parts = list(zip(got, true, strict=True))
    errors = [float((a.double() - b).abs().max() / b.abs().max()) for a, b in parts]
    return [
        0.0 if torch.equal(a.double(), b) else math.inf if math.isnan(e) else e
        for e, (a, b) in zip(errors, parts, strict=True)
    ]


def roundings(dtype: torch.dtype) -> float:
    """What is allowed beside twice the error of the square."""
    return min(8 * torch.finfo(dtype).eps, 1e-3)


def examine(contender: Contender, shape: Shape) -> dict[str, Any]:
    """The verdict on one contender: 'passed', 'wrong', or 'refused' with what it said."""
    record: dict[str, Any] = {"contender": contender.name, "verdict": "passed", "checks": []}
    for mode in (m for m in MODES if m in contender.modes):
        for length in LENGTHS:
            small = Shape(min(shape.batch, 2), length, shape.heads, shape.dim, shape.dtype, shape.device)
            try:
                compare(record, contender, _JUDGE, small.inputs(), mode)
            except (ValueError, TypeError, RuntimeError, NotImplementedError, ImportError) as error:
                said = " ".join(str(error).split("\n\n")[0].split())
                return {**record, "verdict": "refused", "reason": f"{type(error).__name__}: {said}"}
    return record


def compare(
    record: dict[str, Any],
    contender: Contender,
    judge: Contender,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor],
    mode: str,
) -> None:
    """Output and gradients at these q, k, v and gradient, into the record of a verdict."""
    length, floor = inputs[0].shape[1], roundings(inputs[0].dtype)
    wide = tuple(x.double() for x in inputs)
    true = Work(judge, wide, mode, "forward+backward")()  # type: ignore[arg-type]
    plain = errors_of(Work(judge, inputs, mode, "forward+backward")(), true)
    errors = errors_of(Work(contender, inputs, mode, "forward+backward")(), true)
    for part, error, own in zip(PARTS, errors, plain, strict=True):
        note(record, mode, length, part, error, 2 * own + floor)


def note(record: dict[str, Any], mode: str, length: int, part: str, error: float, allowed: float) -> None:
    """One check, into the record of a verdict; the first that fails is its reason."""
    record["checks"].append(
        {"mode": mode, "length": length, "part": part, "error": error, "allowed": allowed}
    )
    if error > allowed:
        record["verdict"] = "wrong"
        record.setdefault(
            "reason", f"{mode}, T = {length}: {part} is off by {error:.1e} where {allowed:.1e} is allowed"
        )


def admit(contenders: list[Contender], shape: Shape) -> tuple[list[Contender], list[dict[str, Any]]]:
    """Those that may be timed, and every verdict. Softmax computes something else: it is PyTorch's
    own, and passes; a bare product passes with the attention built on it. Of one that computes cosFormer
    roughly the error is told, and it passes unless it refuses."""
    verdicts = [examine(c, shape) for c in contenders if c.computes in ("cosformer", ROUGHLY)]
    lenient = {c.name for c in contenders if c.computes == ROUGHLY}
    for v in verdicts:
        if v["contender"] in lenient and v["verdict"] == "wrong":
            v["verdict"], v["reason"] = "passed", f"not held to the tolerance: {v['reason']}"
    failed = {v["contender"] for v in verdicts if v["verdict"] != "passed"}
    if "fast-transformers" in failed:
        failed.add("causal_dot_product")
    return [c for c in contenders if c.name not in failed], verdicts
