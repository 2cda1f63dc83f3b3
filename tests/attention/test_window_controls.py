"""Softmax and ReLU under the windows of cosFormer: what the laws of the zoo do not ask."""

import math
from dataclasses import replace

import pytest
import torch

from cosformer import attention
from cosformer.models import CosformerCache, CosformerForCausalLM
from tests.models import tiny

WINDOWS = (3, 8)


def literal(name, q, k, v, causal, key_mask, offset):
    """One query at a time; query head h reads key head h // group."""
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=q.dtype)
    group = q.shape[2] // k.shape[2]
    for b in range(q.shape[0]):
        for i in range(q.shape[1]):
            for h in range(q.shape[2]):
                seen = [
                    j for j in range(k.shape[1])
                    if abs(i + offset - j) < WINDOWS[h // group]
                    and (not causal or j <= i + offset) and (key_mask is None or key_mask[b, j])
                ]  # fmt: skip
                if not seen:
                    continue
                if name == "softmax":
                    weights = (k[b, seen, h // group] @ q[b, i, h] / math.sqrt(q.shape[3])).softmax(0)
                else:
                    weights = k[b, seen, h // group].clamp_min(0) @ q[b, i, h].clamp_min(0)
                    weights = weights / weights.sum().clamp_min(1e-6)
                out[b, i, h] = weights @ v[b, seen, h // group]
    return out


def inputs(tq, tk, heads=4):
    shapes = (2, tq, heads, 8), (2, tk, 2, 8), (2, tk, 2, 5)
    return [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("name", ["softmax", "relu"])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(
    ("causal", "offset"), [(True, None), (True, 3), (True, 14), (False, None), (False, -2)]
)
@pytest.mark.parametrize(("tq", "tk"), [(11, 11), (4, 13), (9, 2)])
def test_equals_its_equation_between_texts(name, tq, tk, causal, offset, masked):
    """Grouped heads, values of another size, queries before and behind all keys."""
    q, k, v = inputs(tq, tk)
    mask = torch.rand(2, tk) < 0.5 if masked else None
    run = attention.build(name, windows=WINDOWS)
    out = run(q, k, v, causal=causal, key_mask=mask, query_offset=offset)
    default = tk - tq if causal else 0
    expected = literal(name, q, k, v, causal, mask, default if offset is None else offset)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)
    if expected.requires_grad:
        ours, theirs = (torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (out, expected))
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["softmax", "relu"])
def test_a_query_that_sees_nothing_gives_zeros(name):
    q, k, v = inputs(6, 5)
    q, k = q.exp(), k.exp()  # no weight is zero by chance
    run = attention.build(name, windows=WINDOWS)
    out = run(q, k, v, query_offset=7)
    assert (out[:, :, :2] == 0).all(), "a window of 3 ends before the keys"
    assert out[:, :5, 2:].any(-1).all(), "one of 8 does not"
    assert (out[:, 5, 2:] == 0).all()
    gradients = torch.autograd.grad(out.sum(), (q, k, v))
    assert all(g.isfinite().all() for g in gradients)
    assert (gradients[0][:, :, :2] == 0).all()


@pytest.mark.parametrize("name", ["softmax", "relu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_window_as_wide_as_the_text_is_none(name, dtype):
    q, k, v = (x.detach().to(dtype) for x in inputs(20, 20))
    for causal in (True, False):
        wide = attention.build(name, windows=(20, None))(q, k, v, causal=causal)
        assert wide.dtype == dtype
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        plain = attention.build(name)(q, k, v, causal=causal)
        torch.testing.assert_close(wide, plain, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["softmax", "relu"])
def test_compiles_in_one_piece(name):
    run = attention.build(name, windows=(2, None))
    torch.compiler.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for length in (12, 17):
        q, k, v = inputs(length, length)
        torch.testing.assert_close(compiled(q, k, v, causal=True), run(q, k, v, causal=True))


@pytest.mark.parametrize("windows", [None, (20,)])
def test_every_size_may_be_a_symbol(windows):
    """Grouped heads, in a graph for any sizes."""
    run = attention.build("softmax", windows=windows)
    torch.compiler.reset()
    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (12, 30, 70):
        q, k, v = torch.randn(2, length, 2, 8), *torch.randn(2, 2, length, 1, 8)
        for causal in (True, False):
            torch.testing.assert_close(compiled(q, k, v, causal=causal), run(q, k, v, causal=causal))


@pytest.mark.parametrize("name", ["softmax", "relu"])
def test_mistakes_are_told(name):
    with pytest.raises(ValueError, match="one entry for each of the 3 key-value heads, but got 2"):
        attention.build(name, windows=WINDOWS, num_kv_heads=3)
    with pytest.raises(ValueError, match="windows must have one entry for each of the 2 key-value heads"):
        attention.build(name, windows=(2, 3, 4))(*inputs(5, 5))
    with pytest.raises(ValueError, match="multiple of 64 above 256, but got 300; the nearest is 320"):
        attention.build(name, windows=(300, 2))
    assert attention.build(name, windows=(None, None)).windows is None


def test_what_windows_take_away():
    """A box of ReLU weights is a control: quadratic, and without a state. Softmax keeps what it could do, and
    where every head has a window it is linear, with a state of constant size."""
    with_windows, without = attention.build("relu", windows=WINDOWS).traits, attention.traits("relu")
    assert (with_windows.cost, without.cost) == ("quadratic", "linear")
    assert without.recurrent
    assert not with_windows.recurrent
    softmax = attention.traits("softmax")
    assert attention.build("softmax", windows=(3, None)).traits == softmax
    sliding = attention.build("softmax", windows=WINDOWS).traits
    assert sliding == replace(softmax, cost="linear", constant_state=True)


def test_a_state_without_positions_is_refused():
    q, k, v = inputs(6, 6)
    _, state = attention.build("softmax")(q, k, v, causal=True, return_state=True)
    assert state.at is None, "nothing is carried that nobody asks for"
    with pytest.raises(ValueError, match="state was made without windows, but this attention has windows"):
        attention.build("softmax", windows=(3, None))(q, k, v, causal=True, state=state)


def test_a_cache_is_cut_exactly():
    """Where padding had no position, and where a hidden key has one."""
    q, k, v = inputs(20, 20)
    run = attention.build("softmax", windows=(3, None))
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[0, 2] = False
    first = [x[:, :6] for x in (q, k, v)]
    lengths = torch.tensor([6, 4])
    _, short = run(*first, causal=True, key_mask=mask, lengths=lengths, return_state=True)
    _, state = run(*(x[:, 6:12] for x in (q, k, v)), causal=True, state=short, return_state=True)
    assert state.positions.tolist() == [12, 10]
    assert state.crop(6).positions.tolist() == [6, 4]
    assert state.crop(2).positions.tolist() == [2, 2]
    assert short.crop(5).positions.tolist() == [5, 4]
    step = [x[:, 12:] for x in (q, k, v)]
    torch.testing.assert_close(
        run(*step, causal=True, state=state.crop(6)), run(*step, causal=True, state=short)
    )
    assert state.crop(6).nbytes == short.nbytes


def model(**changes):
    return tiny.build(
        CosformerForCausalLM, attention="softmax", attention_parameters={"windows": [1, 3, 9, None]},
        position="rotary", **changes,
    )  # fmt: skip


def test_a_padded_batch_goes_on_from_its_cache_and_from_its_file(tmp_path):
    net = model()
    ids, padding = tiny.tokens(2, 24), torch.ones(2, 12, dtype=torch.int64)
    padding[1, 7:] = 0
    cache = net(ids[:, :12], attention_mask=padding, use_cache=True).past_key_values
    cache.save(tmp_path / "cache.safetensors")
    again = CosformerCache.load(tmp_path / "cache.safetensors", net.config)
    for past in (cache, again):
        mask = torch.cat([padding, torch.ones_like(padding)], 1)
        out = net(ids[:, 12:], attention_mask=mask, past_key_values=past).logits
        for row, n in enumerate((12, 7)):
            own = torch.cat([ids[row, :n], ids[row, 12:]])[None]
            tiny.close(out[row], net(own).logits[0, n:])
