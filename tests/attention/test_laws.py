"""Laws of the zoo: every registered mechanism is under those that its traits claim, by existing."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from cosformer import attention
from cosformer.attention.base import placed

HORIZON = 128
SIZES = {"num_heads": 4, "num_kv_heads": 4, "head_dim": 16, "max_length": HORIZON, "horizon": HORIZON}
LENGTHS = (1, 2, 37, 70)


def mechanism(name):
    return attention.fit(name, {}, **SIZES).double().eval()


def having(**wanted):
    """The mechanisms whose traits are these."""
    return pytest.mark.parametrize(
        "name",
        [
            n
            for n in attention.names()
            if all(getattr(attention.traits(n), t) == v for t, v in wanted.items())
        ],
    )


def qkv(length, *, batch=2, keys=None, kv_heads=4):
    keys = length if keys is None else keys
    shapes = ((batch, length, 4, 16), (batch, keys, kv_heads, 16), (batch, keys, kv_heads, 16))
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def gradients(out, inputs):
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
    return torch.autograd.grad(out, inputs, weight, allow_unused=True)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@having(causal=True)
@pytest.mark.parametrize("length", LENGTHS)
def test_the_future_cannot_change_the_past(name, length):
    run, (q, k, v) = mechanism(name), qkv(length)
    out = run(q, k, v, causal=True)
    for t in {1, length // 2, length - 1} - {0, length}:
        later = [torch.cat([x[:, :t], torch.randn_like(x[:, t:])], 1) for x in (q, k, v)]
        close(run(*later, causal=True)[:, :t], out[:, :t])


@having(key_mask=True)
@pytest.mark.parametrize("causal", [True, False])
def test_a_masked_key_has_no_influence(name, causal):
    if not getattr(attention.traits(name), "causal" if causal else "bidirectional"):
        pytest.skip("the mechanism claims no such thing")
    run, (q, k, v) = mechanism(name), qkv(40)
    mask = torch.rand(2, 40) < 0.6
    mask[1, :5] = False
    hidden = ~mask[..., None, None]
    out = run(q, k, v, causal=causal, key_mask=mask)
    poisoned = run(q, k.masked_fill(hidden, torch.nan), v.masked_fill(hidden, torch.nan), causal=causal,
                   key_mask=mask)  # fmt: skip
    close(poisoned, out)
    assert all(g.isfinite().all() for g in gradients(poisoned, (q, k, v)))
    if causal:
        assert (out[1, :5] == 0).all(), "a query that sees no key gives zeros"


@having(key_mask=True, bidirectional=True)
def test_a_fully_masked_row_gives_zeros_and_zero_gradients(name):
    run, inputs = mechanism(name), qkv(12)
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[1] = False
    out = run(*inputs, key_mask=mask)
    assert (out[1] == 0).all()
    assert out[0].abs().max() > 0
    assert all((g[1] == 0).all() for g in gradients(out, inputs))


@having(recurrent=True, causal=True)
@pytest.mark.parametrize(
    "pieces", [[1] * 50, [20, 30], [49, 1], [7, 7, 36]], ids=["steps", "two", "end", "odd"]
)
def test_pieces_with_a_carried_state_are_the_whole(name, pieces):
    run, inputs = mechanism(name), qkv(50)
    whole = run(*inputs, causal=True)
    outs, state = [], None
    for q, k, v in zip(*(x.split(pieces, 1) for x in inputs), strict=True):
        out, state = run(q, k, v, causal=True, state=state, return_state=True)
        outs.append(out)
    out = torch.cat(outs, 1)
    close(out, whole)
    for piecewise, at_once in zip(gradients(out, inputs), gradients(whole, inputs), strict=True):
        close(piecewise, at_once)
    assert state.positions.tolist() == [50, 50]
    assert state.seen == 50


@having(recurrent=True, causal=True)
def test_states_are_selected_repeated_and_placed(name):
    run, inputs = mechanism(name), qkv(30)
    start = [x[:, :29] for x in inputs]
    last = [x[:, 29:] for x in inputs]
    _, state = run(*start, causal=True, return_state=True)
    rows = torch.tensor([1, 1, 0])
    picked = run(*(x[rows] for x in last), causal=True, state=state.select(rows))
    close(picked, run(*inputs, causal=True)[rows, 29:])
    doubled = run(*(x.repeat_interleave(2, 0) for x in last), causal=True, state=state.repeat(2))
    close(doubled, run(*inputs, causal=True)[:, 29:].repeat_interleave(2, 0))
    moved = placed(state, state.positions + 3, state.seen + 3)
    assert moved.positions.tolist() == [32, 32]
    assert state.positions.tolist() == [29, 29], "states are values"


@having(recurrent=True, cross=True, bidirectional=True)
def test_a_memory_is_read_through_its_state(name):
    run, (q, k, v) = mechanism(name), qkv(9, keys=25)
    mask = torch.ones(2, 25, dtype=torch.bool)
    mask[1, 20:] = False
    whole = run(q, k, v, key_mask=mask, query_offset=0)
    _, memory = run(q[:, :1], k, v, key_mask=mask, query_offset=0, return_state=True)
    for t in range(9):
        at = torch.full((2,), t)
        step = run(q[:, t : t + 1], k[:, :0], v[:, :0], state=placed(memory, at, t), query_offset=0)
        close(step, whole[:, t : t + 1])


@having(cu_seqlens=True)
@pytest.mark.parametrize("causal", [True, False])
def test_packed_documents_are_as_each_alone(name, causal):
    if not getattr(attention.traits(name), "causal" if causal else "bidirectional"):
        pytest.skip("the mechanism claims no such thing")
    run, inputs = mechanism(name), qkv(60, batch=1)
    bounds = [0, 1, 20, 20, 60]
    packed = run(*inputs, causal=causal, cu_seqlens=torch.tensor(bounds))
    alone = torch.cat(
        [run(*(x[:, a:b] for x in inputs), causal=causal) for a, b in pairwise(bounds) if b > a], 1
    )
    close(packed, alone)
    for p, a in zip(gradients(packed, inputs), gradients(alone, inputs), strict=True):
        close(p, a)


@having(grouped_heads=True)
def test_grouped_heads_are_repeated_key_heads(name):
    run, (q, k, v) = mechanism(name), qkv(30, kv_heads=2)
    expanded = run(q, *(x.repeat_interleave(2, 2) for x in (k, v)), causal=True)
    close(run(q, k, v, causal=True), expanded)


@having(cross=True, causal=True)
def test_causal_with_fewer_queries_is_aligned_at_the_end(name):
    run, (q, k, v) = mechanism(name), qkv(30)
    close(run(q[:, 20:], k, v, causal=True), run(q, k, v, causal=True)[:, 20:])
    close(run(q[:, 20:], k, v, causal=True, query_offset=20), run(q, k, v, causal=True)[:, 20:])


@having(recurrent=True)
@pytest.mark.parametrize("length", [1, 17, 100])
def test_state_size_is_what_is_carried(name, length):
    run, (q, k, v) = mechanism(name), qkv(length, kv_heads=2)
    _, state = run(q, k, v, causal=True, return_state=True)
    carried = sum(x.numel() for x in vars(state).values() if torch.is_tensor(x) and x.is_floating_point())
    assert run.state_size(length, num_kv_heads=2, head_dim=16) * 2 == carried
    if attention.traits(name).constant_state:
        assert run.state_size(10**6, num_kv_heads=2, head_dim=16) * 2 == carried


REQUESTS = {
    "causal": {"causal": True},
    "bidirectional": {"causal": False},
    "cross": {"query_offset": 0},
    "key_mask": {"key_mask": torch.ones(1, 8, dtype=torch.bool)},
    "cu_seqlens": {"cu_seqlens": torch.tensor([0, 8])},
    "recurrent": {"return_state": True},
    "packed_state": {"return_state": True, "cu_seqlens": torch.tensor([0, 8])},
    "grouped_heads": {"kv_heads": 2},
}


@pytest.mark.parametrize("trait", REQUESTS)
@pytest.mark.parametrize("name", attention.names())
def test_a_trait_claimed_false_raises(name, trait, monkeypatch):
    """What is truly claimed false, and what is only said to be: the refusal is the registry's, not luck."""
    traits = attention.traits(name)
    run, request = mechanism(name), dict(REQUESTS[trait])
    inputs = qkv(8, batch=1, kv_heads=request.pop("kv_heads", 4))
    request.setdefault("causal", traits.causal)
    if getattr(traits, trait):
        run(*inputs, **request)
        denied = {trait: False}
        if trait == "recurrent":
            denied |= {"packed_state": False, "constant_state": False}
        if trait in ("causal", "bidirectional"):
            denied |= {"causal": trait != "causal", "bidirectional": trait != "bidirectional"}
        monkeypatch.setattr(type(run), "traits", replace(traits, **denied))
    with pytest.raises(
        ValueError, match=rf"attention '{name}' cannot serve this call: .*trait {trait} is False"
    ):
        run(*inputs, **request)
