"""ReLU and elu + 1 by cosFormer's operator with an endless horizon, as on a GPU, against the linear core."""

import pytest
import torch

from cosformer import attention
from cosformer.attention import linear_base
from tests.attention.fused_cases import CALLS, FLOOR, NAMES, make, reference, results
from tests.attention.zoo import build, qkv
from tests.ops.cases import distance, errors, is_as_good_as

each_name = pytest.mark.parametrize("name", NAMES)
each_call = pytest.mark.parametrize("kind", CALLS)
both_ways = pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])


@pytest.fixture
def fuse(monkeypatch):
    """Makes a CPU do what a GPU does; the list has a name for each call of the operator."""
    calls, operator = [], linear_base.cosformer_attention

    def counted(*inputs, **options):
        calls.append("operator")
        return operator(*inputs, **options)

    def start():
        monkeypatch.setattr(linear_base, "can_fuse", lambda q: True)
        monkeypatch.setattr(linear_base, "cosformer_attention", counted)
        return calls

    return start


@each_name
@each_call
@both_ways
def test_is_the_same_function(name, kind, causal, fuse):
    run, (inputs, options) = attention.build(name), make(kind)
    exact = results(run, inputs, causal, options)
    plain = results(run, [x.float() for x in inputs], causal, options)
    calls = fuse()
    ours = results(run, inputs, causal, options)
    narrow = results(run, [x.float() for x in inputs], causal, options)
    assert len(calls) == 2
    for part, truth in exact.items():
        assert distance(ours[part], truth) < 1e-10, part
        found = errors(narrow[part], truth), errors(plain[part], truth)
        assert is_as_good_as(narrow[part], plain[part], truth, FLOOR[torch.float32]), (part, found)


@each_name
@both_ways
@pytest.mark.parametrize("kind", ["plain", "masked", "packed", "no features"])
def test_half_precision_is_as_good_as_the_equation_in_it(name, kind, causal, fuse):
    inputs, options = make(kind)
    inputs = [x.bfloat16() for x in inputs]
    run = attention.build(name)
    exact = results(run, [x.double() for x in inputs], causal, options)
    plain = results(reference(name), inputs, causal, options)
    fuse()
    ours = results(run, inputs, causal, options)
    for part, truth in exact.items():
        assert ours[part].dtype == torch.bfloat16
        found = errors(ours[part], truth), errors(plain[part], truth)
        assert is_as_good_as(ours[part], plain[part], truth, FLOOR[torch.bfloat16]), (part, found)


def test_small_features_are_not_lost_in_half_precision(fuse):
    """elu(-7) + 1 is 0.0009, and 0 or 0.004 where elu(-7) was rounded to eight bits."""
    q, k, v = (torch.randn(1, 40, 1, 16).bfloat16() for _ in range(3))
    k = k - 7
    run = attention.build("linear", eps=1e-30)
    exact = run(q.double(), k.double(), v.double())
    fuse()
    assert distance(run(q, k, v), exact) < 2**-7


@each_name
@both_ways
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_hidden_keys_may_be_anything(name, value, causal, fuse):
    run, ((q, k, v), options) = attention.build(name), make("masked")
    fuse()
    clean = results(run, (q, k, v), causal, options)
    hidden = ~options["key_mask"][..., None, None]
    poisoned = (q, k.masked_fill(hidden, value), v.masked_fill(hidden, value))
    for part, found in results(run, poisoned, causal, options).items():
        assert torch.equal(found, clean[part]), part


@each_name
def test_autocast_decides_the_type_of_the_products(name, fuse):
    run, (inputs, _) = attention.build(name), make("plain")
    fuse()
    half = run(*(x.bfloat16() for x in inputs), causal=True)
    q, k, v = (x.float() for x in inputs)
    with torch.autocast("cpu", torch.bfloat16):
        out = run(q, k.bfloat16(), v, causal=True)
    assert out.dtype == torch.float32
    assert torch.equal(out, half.float())


@each_name
def test_inputs_of_several_types(name, fuse):
    run, ((q, k, v), _) = attention.build(name), make("plain")
    fuse()
    out = run(q.bfloat16(), k.float(), v.double(), causal=True)
    assert torch.equal(out, run(q.bfloat16(), k.float().bfloat16(), v.bfloat16(), causal=True))


@each_name
@both_ways
@pytest.mark.parametrize("eps", [1e-30, 50.0])
def test_the_bound_of_the_denominator(name, eps, causal, fuse):
    run, (inputs, options) = attention.build(name, eps=eps), make("plain")
    exact, _ = results(run, inputs, causal, options), fuse()
    for part, found in results(run, inputs, causal, options).items():
        assert distance(found, exact[part]) < 1e-10, part


@each_name
def test_states_are_those_of_the_core(name, fuse):
    """What carries a state is computed as before."""
    run, inputs = attention.build(name), qkv(40)
    out, state = run(*inputs, causal=True, return_state=True)
    after, calls = run(*inputs, causal=True, state=state), fuse()
    again, same = run(*inputs, causal=True, return_state=True)
    assert torch.equal(again, out)
    assert torch.equal(same.numerator, state.numerator)
    assert torch.equal(run(*inputs, causal=True, state=state), after)
    assert not calls


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "identity", "performer", "rfa"])
def test_others_are_computed_by_the_core(name, fuse):
    parameters = {"windows": [3, None, None, 8]} if name == "relu" else {}
    run, inputs = build((name, parameters)), qkv(40)
    out, calls = run(*inputs, causal=True), fuse()
    assert torch.equal(run(*inputs, causal=True), out)
    assert not calls


@each_name
def test_calls_that_the_operator_alone_would_refuse(name, fuse):
    """Nothing to sum, a mask for all rows; an offset within packed documents both refuse."""
    run, (q, k, v) = attention.build(name), qkv(40)
    nothing = [(q[:, :0], k, v), (q, k[:, :0], v[:, :0]), (q[:0], k[:0], v[:0])]
    mask = torch.rand(1, 40) < 0.7
    expected = [run(*x) for x in nothing], run(q, k, v, key_mask=mask)
    calls = fuse()
    for x, out in zip(nothing, expected[0], strict=True):
        assert torch.equal(run(*x), out)
    assert not calls
    assert distance(run(q, k, v, key_mask=mask), expected[1]) < 1e-10
    assert calls
    with pytest.raises(ValueError, match="query_offset must be left out with cu_seqlens, but got 3"):
        run(q[:1], k[:1], v[:1], cu_seqlens=torch.tensor([0, 40]), query_offset=3)


def test_without_a_gpu_the_core_computes(monkeypatch):
    monkeypatch.setattr(linear_base, "cosformer_attention", None)
    for name in NAMES:
        attention.build(name)(*qkv(10), causal=True)


@pytest.mark.parametrize("name", ["relu", "softmax"])
def test_an_offset_is_an_int(name):
    with pytest.raises(TypeError, match="query_offset must be an int, but got float"):
        attention.build(name)(*qkv(4), causal=True, query_offset=1.5)
