"""Drawn calls of the operator against the paper's equation in float64: row by row, values and gradients, over
all backends that the machine has.

call    values and gradients of a backend: in float64 to 1e-10; below that as good as plain arithmetic in the
        same type, by the rule of the tests (tests/ops/cases.py). Gradients that break this rule and are still
        close to the truth end as "worse than plain", which is not "right"
cut     a causal text cut anywhere, with the state carried, is the text whole
spoilt  what a query does not see may be NaN, inf or huge, and moves no bit of it: later keys, masked keys,
        other documents
triton  as `call`, by the kernels for GPUs: in Triton's interpreter where there is no GPU
"""

import itertools
import random
import signal
import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

import cosformer
from tests.ops import drawn
from tests.ops.cases import Case, distance, is_as_good_as, is_close

T = TypeVar("T")
KINDS = (*12 * ("call",), *4 * ("cut",), *4 * ("spoilt",))
TRITON_EVERY = 100  # cases: the interpreter takes seconds for one
DTYPES = (*3 * (torch.float64,), torch.float32, torch.bfloat16, torch.float16)
EXACT = 1e-10
# What one rounding of a result costs; of the kernels, of a sum.
FLOOR = {torch.float32: 2**-22, torch.bfloat16: 2**-8, torch.float16: 2**-11}
# Gradients that are worse than those of plain arithmetic, and no further off than this, are counted apart: a
# row whose gradient was computed wrongly is off by a half and more.
ROUNDING = {torch.float32: 2e-4, torch.bfloat16: 3e-2, torch.float16: 1e-2}  # ten times that in a row


class Wrong(Exception):
    """A result that is not what it should be."""


class Seeded:
    """Draws by Python's generator."""

    def __init__(self, rng: random.Random):
        self.rng = rng

    def integer(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def one_of(self, choices: Sequence[T]) -> T:
        return self.rng.choice(choices)


def run(number: int, rng: random.Random, seconds: float) -> dict[str, Any]:
    """Draws one case and judges it: {what, end, said, kinds}."""
    # oneDNN's bfloat16 products die on virtual machines that announce AMX without allowing it.
    torch.backends.mkldnn.set_flags(False)
    pick = Seeded(rng)
    kind = "triton" if number % TRITON_EVERY == 7 and "triton" in backends() else pick.one_of(KINDS)
    what, end, said = kind, "right", ""
    before = signal.signal(signal.SIGALRM, _late)
    # Triton's interpreter takes a second for what a GPU does in none, and ten on a busy machine.
    signal.setitimer(signal.ITIMER_REAL, 10 * seconds if kind == "triton" else seconds)
    try:
        judge = {"call": _call, "cut": _cut, "spoilt": _spoilt, "triton": _triton}[kind]
        steps = judge(pick)  # first in words, then judged
        what = next(steps)
        said = next(steps, None) or ""
        end = "worse than plain" if said else "right"
    except Wrong as wrong:
        end, said = "wrong", str(wrong)
    except TimeoutError:
        end, said = "hang", f"longer than {seconds:g} s"
    except Exception:
        end, said = "traceback", traceback.format_exc()[-2000:]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return {"what": what[:300], "end": end, "said": said, "kinds": [kind]}


def _late(number: int, frame: Any) -> None:
    raise TimeoutError


def backends() -> list[str]:
    return [b.name for b in cosformer.backends() if b.available]


def _words(case: Case, dtype: torch.dtype) -> str:
    shapes = ", ".join(f"{n} {list(x.shape)}" for n, x in case.tensors.items())
    given = {n: (list(x.shape) if isinstance(x, Tensor) else x) for n, x in case.options.items()}
    given.pop("state", None)
    return f"{str(dtype).removeprefix('torch.')}: {shapes}; {given}"


def _call(pick: Seeded) -> Any:
    dtype = pick.one_of(DTYPES)
    # With few features gradients cancel: with one alone, that of q is zero, and all of it rounding.
    narrowest = 1 if dtype == torch.float64 else 8
    case = drawn.call(pick, dtype, pick.one_of((False, True)), narrowest=narrowest)
    backend = pick.one_of(("chunked", "auto"))
    yield f"{backend}, {_words(case, dtype)}"
    yield _judged(case, dtype, backend)


def _triton(pick: Seeded) -> Any:
    dtype = pick.one_of((torch.float32, torch.float32, torch.float16))
    lengths, windows = (1, 2, 7, 16, 17, 40), (None, 1, 5, 33)
    case = drawn.call(pick, dtype, pick.one_of((False, True)), lengths, windows, narrowest=8)
    yield f"triton, {_words(case, dtype)}"
    yield _judged(case, dtype, "triton")


def _judged(case: Case, dtype: torch.dtype, backend: str) -> str:
    """Every value and gradient of a backend; in words those that are close, but worse than plain ones."""
    if dtype == torch.float64:
        _same(case.results(backend), case.results("reference"))
        return ""
    worse = []
    case.options["horizon"] *= 2  # beyond half of it a cosine is a small difference of products
    if "state" in case.options:
        case.options["state"] = replace(case.options["state"], horizon=case.options["horizon"])
    exact = case.to(torch.float64).results("reference")
    ours, plain = case.results(backend), case.results("reference")
    linear = case.results("chunked") if dtype == torch.float32 and backend == "triton" else plain
    for name, truth in exact.items():
        if not truth.numel() or truth.abs().max() > torch.finfo(dtype).max / 100:
            continue  # a drawn state can bring a denominator near zero: out of this type's range
        able = [x[name] for x in (plain, linear) if x[name].isfinite().all()]
        if not able:
            continue
        if not ours[name].isfinite().all():
            raise Wrong(f"{name} is not finite")
        right = any(is_as_good_as(ours[name], x, truth, FLOOR[dtype]) for x in able)
        if right:
            continue
        worst = distance(ours[name], truth), min(distance(x, truth) for x in able)
        words = f"{name}: the worst row is off by {worst[0]:.2g}, plain arithmetic by {worst[1]:.2g}"
        rounding = min(0.03, ROUNDING[dtype] / min(1.0, _least_weight(case)))
        if not (name.startswith("d") and is_close(ours[name], truth, rounding)):
            raise Wrong(words)
        worse.append(words)
    return "; ".join(worse)


def _least_weight(case: Case) -> float:
    """The smallest denominator of a query that sees anything, by which gradients are divided."""
    exact = case.to(torch.float64)
    t = exact.tensors | {n: torch.ones_like(exact.tensors[n]) for n in ("v", "values") if n in exact.tensors}
    if "numerator" in t:
        t["numerator"] = t["denominator"].unsqueeze(-1).expand_as(t["numerator"])
    found = Case(t, exact.options).call("reference", eps=1e12)  # so large that it is what is divided by
    weights = (found if isinstance(found, Tensor) else found[0]).abs() * 1e12
    return float(weights[weights > 0].min()) if (weights > 0).any() else 1.0


def _same(ours: dict[str, Tensor], truth: dict[str, Tensor]) -> None:
    for name in ours.keys() ^ truth.keys():  # what is empty need not come back
        if ours.get(name, truth.get(name)).numel():  # type: ignore[union-attr]
            raise Wrong(f"{name} came back on one side alone")
    for name, expected in truth.items():
        if ours[name].shape != expected.shape or not distance(ours[name], expected) <= EXACT:
            raise Wrong(f"{name}: the worst row is off by {distance(ours[name], expected):.2g}")


def _cut(pick: Seeded) -> Any:
    """Values, gradients and the last state of the pieces are those of the whole."""
    torch.manual_seed(pick.integer(0, 2**31))
    length, heads, group = pick.one_of(drawn.LENGTHS), pick.integer(1, 2), pick.integer(1, 2)
    cuts = [0, *sorted(pick.integer(0, length) for _ in range(pick.integer(1, 5))), length]
    windows = pick.one_of((None, tuple(pick.one_of(drawn.WINDOWS) for _ in range(heads))))
    mask = torch.rand(2, length) < pick.one_of((0.5, 0.9, 1.0))
    options: dict[str, Any] = {"causal": True, "horizon": float(length), "windows": windows}
    sizes = {"q": heads * group, "k": heads, "v": heads}
    x = {n: torch.randn(2, length, h, pick.integer(8, 12) if n == "v" else 8, dtype=torch.float64)
         for n, h in sizes.items()}  # fmt: skip
    yield f"[2, {length}, {heads * group} / {heads}] cut at {cuts[1:-1]}, windows {windows}"

    def results(bounds: list[int], backend: str) -> dict[str, Tensor]:
        leaves = [t.clone().requires_grad_() for t in x.values()]
        state, outs = None, []
        for a, b in itertools.pairwise(bounds):
            q, k, v = (t[:, a:b] for t in leaves)
            if a < b:
                out, state = cosformer.cosformer_attention(
                    q, k, v, key_mask=mask[:, a:b], state=state, return_state=True, backend=backend, **options
                )
                outs.append(out)
        assert state is not None
        whole = torch.cat(outs, 1)
        end = {n: getattr(state, n) for n in ("numerator", "denominator", "keys", "values")}
        found = {"out": whole, **{n: t for n, t in end.items() if t is not None}}
        weight = torch.linspace(-1, 1, whole.numel(), dtype=whole.dtype).view_as(whole)
        total = (whole * weight).sum() + sum(t.square().sum() for n, t in found.items() if n != "out")
        grads = torch.autograd.grad(total, leaves)
        return found | {f"d{n}": g for n, g in zip(x, grads, strict=True)}

    _same(results(cuts, "chunked"), results([0, length], "reference"))


def _spoilt(pick: Seeded) -> Any:
    """Bits of what cannot be seen from the spoilt places, with garbage there and without."""
    torch.manual_seed(pick.integer(0, 2**31))
    way = pick.one_of(("later", "masked", "document"))
    length = pick.one_of([n for n in drawn.LENGTHS if n > 2])
    at, to = sorted((pick.integer(1, length - 1), pick.integer(1, length - 1)))
    to += 1
    heads, group = pick.integer(1, 2), pick.integer(1, 2)
    windows = pick.one_of((None, tuple(pick.one_of(drawn.WINDOWS) for _ in range(heads))))
    garbage = pick.one_of((torch.nan, torch.inf, -torch.inf, 1e30))
    backend = pick.one_of(("chunked", "chunked", "reference"))
    dtype = pick.one_of((torch.float32, torch.float64))
    options: dict[str, Any] = {"causal": way == "later" or pick.one_of((False, True)), "windows": windows}
    options |= {"horizon": float(length), "backend": backend}
    where = torch.zeros(length, dtype=torch.bool)
    where[at:to] = True
    if way == "masked":
        options["key_mask"] = ~where[None]
    if way == "document":
        options["cu_seqlens"] = torch.tensor([0, at, to, length])
    yield f"{way} [{at}, {to}) of {length}, {garbage}, {heads * group} / {heads} heads, {options}"

    untouched = torch.arange(length) < at if way == "later" else ~where
    names = "kv" if way == "masked" else "qkv"
    x = {n: torch.randn(1, length, heads * (group if n == "q" else 1), 8, dtype=dtype) for n in "qkv"}
    weight = torch.randn(1, length, heads * group, 8, dtype=dtype)
    if way == "later":
        weight[:, at:] = 0

    def results() -> dict[str, Tensor]:
        leaves = [x[n].clone().requires_grad_() for n in "qkv"]
        out = cosformer.cosformer_attention(*leaves, **options)
        return dict(
            zip(("out", "dq", "dk", "dv"), (out, *torch.autograd.grad(out, leaves, weight)), strict=True)
        )

    clean = results()
    for name in names:
        x[name][:, where] = garbage
    for name, found in results().items():
        kept = torch.ones_like(where) if way == "masked" and name in ("out", "dq") else untouched
        if not torch.equal(found[:, kept], clean[name][:, kept]):
            raise Wrong(f"{name} is not the same to the bit")
