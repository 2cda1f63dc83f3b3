"""Every registered attention as a contender, and the gate it has to pass: its own slow transcription."""

import importlib
import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from benchmarks.contenders import MODES, Attend, Contender, Shape, Work
from benchmarks.gate import PARTS, errors_of, note
from cosformer import attention
from cosformer.attention import Attention

LENGTHS = (63, 200)  # of the gate: less and more than a chunk or a block
HEADS = 2  # of the gate: heads know nothing of one another
ALLOWED = 2e-4  # in float32, of values and gradients, relative to the largest entry
ALLOWED_NARROW = 0.02  # of a narrow type beside float32 on the same numbers, as a root mean square
SEED = 0


def mechanism(name: str, shape: Shape) -> Attention:
    """As a model with texts of this length would build it; random ones always with the same numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        made = attention.fit(
            name,
            {},
            num_heads=shape.heads,
            num_kv_heads=shape.heads,
            head_dim=shape.dim,
            max_length=shape.length,
            horizon=shape.length,
        )
    return made.to(shape.device, shape.dtype).eval()


def attend(name: str) -> Attend:
    built = cache(lambda shape: mechanism(name, shape))

    def call(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        out: Tensor = built(_shape_of(q))(q, k, v, causal=causal)
        return out

    return call


def contender(name: str) -> Contender:
    traits = attention.traits(name)
    able = (("causal", traits.causal), ("bidirectional", traits.bidirectional))
    modes = tuple(mode for mode, can in able if can)
    return Contender(name, name, attend(name), modes=modes, source=__name__)


def find(shape: Shape) -> tuple[list[Contender], dict[str, str]]:
    """All of the registry; nobody is absent."""
    return [contender(name) for name in attention.names()], {}


def state_numbers(name: str, shape: Shape) -> int | None:
    """How many numbers a row of the batch carries in decoding; None where nothing can be carried."""
    if not attention.traits(name).recurrent:
        return None
    with torch.device("meta"):
        made = attention.fit(
            name,
            {},
            num_heads=shape.heads,
            num_kv_heads=shape.heads,
            head_dim=shape.dim,
            max_length=shape.length,
            horizon=shape.length,
        )
    return made.state_size(shape.length, num_kv_heads=shape.heads, head_dim=shape.dim)


def examine(found: Contender, shape: Shape) -> dict[str, Any]:
    """The verdict on one contender: 'passed', 'wrong', or 'refused' with what it said."""
    record: dict[str, Any] = {"contender": found.name, "verdict": "passed", "checks": []}
    slow = importlib.import_module(f"tests.attention.transcriptions.{found.name}").transcription
    for mode in (m for m in MODES if m in found.modes):
        for length in LENGTHS:
            plain = Shape(1, length, HEADS, shape.dim, torch.float32, shape.device)
            narrow = Shape(1, length, HEADS, shape.dim, shape.dtype, shape.device)
            try:
                got = Work(found, plain.inputs(), mode, "forward+backward")()
                also = None
                if shape.dtype not in (torch.float32, torch.float64):
                    rounded = narrow.inputs()
                    also = Work(found, rounded, mode, "forward")()[0]
            except (ValueError, TypeError, RuntimeError, NotImplementedError) as error:
                said = str(error).strip().splitlines() or [""]
                return {**record, "verdict": "refused", "reason": f"{type(error).__name__}: {said[0]}"}
            true = _transcribed(slow, found.name, plain, mode)
            checks = [
                (part, error, ALLOWED)
                for part, error in zip(PARTS, errors_of(tuple(x.cpu() for x in got), true), strict=True)
            ]
            if also is not None:
                # The same numbers in float32, parameters too: rounded, a hash may fall into another bucket.
                with torch.no_grad():
                    judge = mechanism(found.name, narrow).float()
                    wide = judge(*(x.float() for x in rounded[:3]), causal=mode == "causal")
                checks.append((str(shape.dtype), _root_mean_square(also, wide), ALLOWED_NARROW))
            for check in checks:
                note(record, mode, length, *check)
    return record


def _transcribed(slow: Any, name: str, shape: Shape, mode: str) -> tuple[Tensor, ...]:
    """The output and the gradients of the transcription in float64, on the CPU."""
    *qkv, grad = (x.double().cpu() for x in shape.inputs())
    inputs = [x.requires_grad_() for x in qkv]
    judge = mechanism(name, _shape_of(inputs[0]))
    out = slow(judge, *inputs, causal=mode == "causal")
    gradients = torch.autograd.grad(out, inputs, grad, allow_unused=True)
    filled = (torch.zeros_like(x) if g is None else g for g, x in zip(gradients, inputs, strict=True))
    return (out.detach(), *filled)


def _shape_of(q: Tensor) -> Shape:
    batch, length, heads, dim = q.shape
    return Shape(batch, length, heads, dim, q.dtype, q.device)


def _root_mean_square(got: Tensor, true: Tensor) -> float:
    error = float(
        (got.double() - true.double()).square().mean().sqrt() / true.double().square().mean().sqrt()
    )
    return math.inf if math.isnan(error) else error
