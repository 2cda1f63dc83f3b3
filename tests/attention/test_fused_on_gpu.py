"""ReLU and elu + 1 by the operator's kernels on a GPU, against the linear core on the CPU in float64."""

import pytest
import torch

from cosformer import attention
from tests.attention.fused_cases import CALLS, FLOOR, NAMES, make, reference, results
from tests.ops.cases import errors, is_as_good_as, is_close

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU here")

each_name = pytest.mark.parametrize("name", NAMES)
both_ways = pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
each_dtype = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


def assert_right(name, inputs, dtype, causal, options):
    """At most twice the error of the equation in the same type; where that overflows in float16, of the
    equation in bfloat16, which has three bits less."""
    run, inputs = attention.build(name), [x.to(dtype) for x in inputs]
    exact = results(run, [x.double() for x in inputs], causal, options)
    there = [x.cuda() for x in inputs]
    ours, plain = results(run, there, causal, options), results(reference(name), there, causal, options)
    coarse = results(reference(name), [x.bfloat16() for x in there], causal, options)
    for part, truth in exact.items():
        instead = tuple(error / 8 for error in errors(coarse[part].double(), truth))
        assert ours[part].dtype == dtype
        found = errors(ours[part], truth), errors(plain[part], truth)
        assert is_as_good_as(ours[part], plain[part], truth, FLOOR[dtype], instead), (part, found, instead)


@each_name
@pytest.mark.parametrize("kind", CALLS)
@each_dtype
@both_ways
def test_every_kind_of_call(name, kind, dtype, causal):
    inputs, options = make(kind, dim=64)
    assert_right(name, inputs, dtype, causal, options)


@each_name
@pytest.mark.parametrize(("length", "dim"), [(1000, 64), (4096, 64), (777, 128), (777, 80), (65, 17)])
@each_dtype
@both_ways
def test_sizes(name, length, dim, dtype, causal):
    inputs, options = make("plain", tq=length, dim=dim)
    assert_right(name, inputs, dtype, causal, options)


@each_name
@both_ways
def test_long_sequences(name, causal):
    """Sums of 65,536 features of about 1 are beyond float16 and the counting of bfloat16."""
    run = attention.build(name)
    for dtype in (torch.bfloat16, torch.float16):
        inputs = [torch.randn(1, 65536, 2, 64, dtype=dtype, device="cuda") for _ in range(3)]
        exact = results(run, [x.double() for x in inputs], causal, {})
        for part, mine in results(run, inputs, causal, {}).items():
            assert is_close(mine, exact[part], 1e-2), (part, errors(mine, exact[part]))


@each_name
@both_ways
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_hidden_keys_may_be_anything(name, value, causal):
    run, (inputs, options) = attention.build(name), make("masked", dim=64)
    q, k, v = (x.bfloat16().cuda() for x in inputs)
    clean = results(run, (q, k, v), causal, options)
    hidden = ~options["key_mask"].cuda()[..., None, None]
    poisoned = (q, k.masked_fill(hidden, value), v.masked_fill(hidden, value))
    for part, found in results(run, poisoned, causal, options).items():
        assert torch.equal(found, clean[part]), part


@each_name
def test_autocast(name):
    run, (inputs, _) = attention.build(name), make("plain", dim=64)
    half = run(*(x.bfloat16().cuda() for x in inputs), causal=True)
    q, k, v = (x.float().cuda() for x in inputs)
    with torch.autocast("cuda", torch.bfloat16):
        out = run(q, k, v.bfloat16(), causal=True)
    assert out.dtype == torch.float32
    assert torch.equal(out, half.float())


@each_name
def test_whole_texts_are_those_of_pieces(name):
    """The kernels, and the core that carries states, on the same text."""
    run, (inputs, _) = attention.build(name), make("plain", dim=64)
    inputs = [x.bfloat16().cuda() for x in inputs]
    whole, outs, state = run(*inputs, causal=True), [], None
    for q, k, v in zip(*(x.split([70, 1, 79], 1) for x in inputs), strict=True):
        out, state = run(q, k, v, causal=True, state=state, return_state=True)
        outs.append(out)
    assert is_close(torch.cat(outs, 1), whole, 1e-2)


@each_name
def test_compiled(name):
    run, (inputs, _) = attention.build(name), make("plain", dim=64)
    inputs = [x.bfloat16().cuda() for x in inputs]
    torch.compiler.reset()
    compiled = torch.compile(run, fullgraph=True)
    ours = results(compiled, inputs, True, {})
    for part, eager in results(run, inputs, True, {}).items():
        assert is_close(ours[part], eager, 1e-2), part
