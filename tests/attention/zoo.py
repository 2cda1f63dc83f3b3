"""Every registered mechanism with every parameter set worth testing, chosen by traits and by nothing else."""

import importlib
import importlib.util

import pytest
import torch

from cosformer import attention

HORIZON = 256
HEADS, HEAD_DIM = 4, 16
SIZES = {
    "num_heads": HEADS, "num_kv_heads": HEADS, "head_dim": HEAD_DIM, "max_length": HORIZON, "horizon": HORIZON
}  # fmt: skip


def transcription(name):
    """The module with the slow form of a mechanism; None where nobody has written one."""
    path = f"tests.attention.transcriptions.{name}"
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        return None


def variations(name):
    return getattr(transcription(name), "PARAMETERS", [{}])


def build(case, **sizes):
    """A mechanism of a case (name, parameters), as a model would build it; float64, random parameters."""
    name, parameters = case
    sizes = SIZES | sizes
    if "windows" in parameters:  # one for each key-value head that there is
        parameters = parameters | {"windows": parameters["windows"][: sizes["num_kv_heads"]]}
    made = attention.fit(name, parameters, **sizes).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.25)
    return made


def _cases():
    found = []
    for name in attention.names():
        for parameters in variations(name):
            words = ",".join(f"{k}={v}" for k, v in parameters.items())
            traits = attention.fit(name, parameters, **SIZES).traits
            found.append((pytest.param((name, parameters), id=f"{name}[{words}]" if words else name), traits))
    return found


CASES = _cases()


def having(**wanted):
    """Parametrises over the cases whose traits are these."""
    return pytest.mark.parametrize(
        "case", [c for c, traits in CASES if all(getattr(traits, t) == v for t, v in wanted.items())]
    )


def both_ways(**wanted):
    """The same, with `causal` True and False, whichever of them the case can do."""
    found = []
    for case, traits in CASES:
        if all(getattr(traits, t) == v for t, v in wanted.items()):
            (value,) = case.values
            if traits.causal:
                found.append(pytest.param(value, True, id=f"{case.id}-causal"))
            if traits.bidirectional:
                found.append(pytest.param(value, False, id=f"{case.id}-both"))
    return pytest.mark.parametrize(("case", "causal"), found)


def qkv(length, *, batch=2, keys=None, heads=HEADS, kv_heads=None):
    keys, kv_heads = length if keys is None else keys, heads if kv_heads is None else kv_heads
    shapes = ((batch, length, heads), (batch, keys, kv_heads), (batch, keys, kv_heads))
    return [torch.randn(*shape, HEAD_DIM, dtype=torch.float64, requires_grad=True) for shape in shapes]


def gradients(out, inputs):
    """Of a fixed random sum of the output; None where an input has no part in it."""
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
    return torch.autograd.grad(out, inputs, weight, allow_unused=True)


def close(a, b, tolerance=1e-9):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def all_close(ours, theirs, tolerance=1e-9):
    """Gradients; None and zero are the same."""
    for a, b in zip(ours, theirs, strict=True):
        if a is None or b is None:
            assert a is b or not (b if a is None else a).any()
        else:
            close(a, b, tolerance)
