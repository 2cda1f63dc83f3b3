"""The sparse patterns: softmax under their dense masks, positions that padding does not shift, true cost."""

import pytest
import torch
import torch.nn.functional as F

from cosformer import attention
from cosformer.attention.bigbird import choose
from tests.attention.zoo import close


def distances(length):
    i = torch.arange(length)
    return i[:, None] - i


def local(run, length, causal):
    block = torch.arange(length) // run.block
    return block[:, None] == block


def longformer(run, length, causal):
    away = distances(length)
    seen = (away.abs() <= run.window // 2 * run.dilation) & (away % run.dilation == 0)
    tokens = run.global_tokens
    if tokens is None:
        tokens = 0 if causal else 1
    seen[:, :tokens] = True
    seen[:tokens] = True
    return seen


def sparse(run, length, causal):
    if run.kind == "strided":
        away = distances(length)
        return (away.abs() <= run.step) | (away % run.step == 0)
    at = torch.arange(length)
    ends = (at % run.step) >= run.step - run.summary
    return (at[:, None] // run.step == at // run.step) | ends


def bigbird(run, length, causal):
    """[Hk, T, T]"""
    n = -(-length // run.block)
    seen = torch.zeros(run.num_kv_heads, n, n, dtype=torch.bool)
    seen |= (distances(n).abs() <= run.window_blocks // 2)[None]
    chosen = choose(
        run.draws[:, :n], torch.full((1, 1, 1, 1), n), run.window_blocks // 2, *run._first_and_last
    )[0]
    for h, x, y in zip(*(chosen >= 0).nonzero(as_tuple=True), strict=True):
        seen[h, x, chosen[h, x, y]] = True
    first, last = run._first_and_last
    ends = list(range(min(first, n))) + list(range(max(0, n - last), n))
    seen[:, ends] = True
    seen[:, :, ends] = True
    each = torch.arange(length) // run.block
    return seen[:, each][:, :, each]


PATTERNS = [
    (local, {}),
    (local, {"block": 33}),
    (longformer, {"window": 30}),
    (longformer, {"window": 200, "global_tokens": 7}),
    (longformer, {"window": 12, "dilation": 5, "global_tokens": 2}),
    (sparse, {"max_length": 1000}),
    (sparse, {"kind": "fixed", "stride": 20, "summary": 3}),
    (sparse, {"kind": "strided", "max_length": 1000}),
    (sparse, {"kind": "strided", "stride": 7}),
    (bigbird, {"block": 16}),
    (bigbird, {"block": 9, "window_blocks": 5, "global_blocks": 3, "random_blocks": 4}),
]


@pytest.mark.parametrize("length", [1, 63, 500, 1000])
@pytest.mark.parametrize(
    ("pattern", "parameters"), PATTERNS, ids=[f"{p.__name__}{list(x.values())}" for p, x in PATTERNS]
)
def test_equals_softmax_under_the_mask_of_its_pattern(pattern, parameters, length):
    """Long enough for many groups, with grouped heads, holes in the keys, values and gradients."""
    run = attention.fit(pattern.__name__, parameters, num_kv_heads=2, max_length=1000)
    q = torch.randn(2, length, 4, 8, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(2, length, 2, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    real = torch.rand(2, length) < 0.8
    real[:, -1] = True
    for causal in (True, False) if run.traits.causal else (False,):
        seen = pattern(run, length, causal)
        seen = seen.tril() if causal else seen
        seen = seen.expand(2, length, length).repeat_interleave(2, 0) & real[:, None, None]
        none = ~seen.any(-1, keepdim=True)
        expected = F.scaled_dot_product_attention(
            q.transpose(1, 2), *(x.transpose(1, 2) for x in (k, v)), attn_mask=seen | none, enable_gqa=True
        )
        expected = expected.masked_fill(none, 0).transpose(1, 2)
        out = run(q, k, v, causal=causal, key_mask=real)
        close(out, expected)
        weight = torch.randn_like(out)
        ours, theirs = (torch.autograd.grad(x, (q, k, v), weight) for x in (out, expected))
        close(ours, theirs)


def test_no_global_tokens_in_causal_longformers_unless_asked_for():
    q = torch.randn(1, 40, 1, 8)
    k = q.clone()
    k[:, 0] += 9
    for given, causal, changed in (
        (None, True, False),
        (2, True, True),
        (None, False, True),
        (0, False, False),
    ):
        run = attention.build("longformer", window=4, global_tokens=given)
        different = run(q, k, q, causal=causal)[:, 10:] != run(q, q, q, causal=causal)[:, 10:]
        assert different.any() == changed


def test_random_blocks_are_distinct_and_fall_everywhere():
    draws = torch.randint(2**31, (4, 40, 3))
    blocks = torch.tensor([40, 7, 6, 1])[:, None, None, None]
    chosen = choose(draws, blocks, 1, 1, 1)
    assert chosen.shape == (4, 4, 40, 3)
    for row, n in enumerate(blocks.flatten().tolist()):
        for x in range(n):
            others = set(range(n)) - {0, n - 1, x - 1, x, x + 1}
            for found in chosen[row, :, x].tolist():
                real = [y for y in found if y >= 0]
                assert set(real) <= others
                assert len(set(real)) == len(real) == min(3, len(others))
    many = choose(torch.randint(2**31, (1000, 10, 2)), torch.full((1, 1, 1, 1), 10), 1, 1, 1)[0, :, 5]
    share = torch.bincount(many.flatten(), minlength=10)[[1, 2, 3, 7, 8]] / 1000
    assert ((share - 2 / 5).abs() < 0.06).all(), "each of the five others equally often"


def test_random_blocks_stay_when_the_model_changes_its_type():
    run = attention.build("bigbird", block=4, num_kv_heads=2, max_length=100)
    before = run.draws.clone()
    assert torch.equal(run.to(torch.bfloat16).draws, before)
    assert torch.equal(run.to(torch.float64).draws, before)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("local", {"block": 0}, "block must be a positive int"),
        ("longformer", {"window": 5}, "window must be even"),
        ("longformer", {"global_tokens": -1}, "global_tokens must be an int that is not negative"),
        ("sparse", {"kind": "banded"}, "kind must be one of strided, fixed"),
        ("bigbird", {"window_blocks": 4}, "window_blocks must be odd"),
        ("bigbird", {"random_blocks": 1.5}, "random_blocks must be an int that is not negative"),
    ],
)
def test_wrong_parameters(name, parameters, message):
    with pytest.raises(ValueError, match=message):
        attention.build(name, **parameters)


def test_a_state_is_for_causal_calls():
    q = torch.randn(1, 4, 2, 8)
    with pytest.raises(ValueError, match="carries a state in causal calls alone"):
        attention.build("local")(q, q, q, return_state=True)


def test_behind_a_state_there_are_as_many_queries_as_keys():
    q = torch.randn(1, 4, 2, 8)
    _, state = attention.build("local")(q, q, q, causal=True, return_state=True)
    with pytest.raises(ValueError, match="queries and keys of different lengths"):
        attention.build("local")(q[:, 2:], q, q, causal=True, state=state)


def test_a_state_is_cut_exactly():
    run = attention.build("longformer", window=6, global_tokens=1)
    q, k, v = (torch.randn(2, 30, 2, 8, dtype=torch.float64) for _ in range(3))
    _, state = run(q[:, :25], k[:, :25], v[:, :25], causal=True, return_state=True)
    cut = state.crop(20)
    assert cut.positions.tolist() == [20, 20]
    out = run(q[:, 20:], k[:, 20:], v[:, 20:], causal=True, state=cut)
    close(out, run(q, k, v, causal=True)[:, 20:])
