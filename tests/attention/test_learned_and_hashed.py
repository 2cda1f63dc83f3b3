"""What is particular to sinkhorn, synthesizer, linformer and reformer."""

import pytest
import torch

from cosformer import attention
from cosformer.attention.sinkhorn import balance
from cosformer.nn import MultiheadAttention
from tests.attention.zoo import close


def sums(matrix):
    return matrix.sum(-1), matrix.sum(-2)


def test_the_sorting_matrix_is_doubly_stochastic():
    torch.manual_seed(0)
    run = attention.build("sinkhorn", block=8, iterations=60, num_kv_heads=2, head_dim=16, max_length=128)
    k = torch.randn(3, 2, 12, 8, 16)
    real = torch.ones(3, 12, 8, dtype=torch.bool)
    real[1, 7:] = False  # five blocks of padding
    real[2, 3, 2:] = False  # a block that is not full
    k = k.masked_fill(~real[:, None, ..., None], 0)
    matrix = run.eval().sorting_matrix(k, real)
    assert (matrix >= 0).all()
    for row, there in zip(matrix, real.any(-1), strict=True):
        for total in sums(row):
            torch.testing.assert_close(total, there.float().expand_as(total), atol=2e-3, rtol=0)
    few, many = (balance(torch.randn(9, 9) * 2, torch.ones(9, dtype=torch.bool), n) for n in (2, 50))
    assert (sums(few)[0] - 1).abs().max() > 1e-3 > 1e-5 > (sums(many)[0] - 1).abs().max()


def test_a_sharp_sorting_matrix_is_a_permutation():
    """Where the network says so plainly, each block of queries reads one other block as it stands."""
    order = torch.tensor([2, 0, 3, 1])
    scores = torch.full((4, 4), -40.0).scatter(1, order[:, None], 40.0)
    matrix = balance(scores, torch.ones(4, dtype=torch.bool), 8)
    close(matrix, torch.nn.functional.one_hot(order, 4).float(), 1e-6)


def test_noise_is_for_training():
    q = torch.randn(1, 40, 2, 16)
    for noise in (True, False):
        run = attention.build("sinkhorn", block=8, noise=noise, num_kv_heads=2, head_dim=16, max_length=64)
        assert torch.equal(run.eval()(q, q, q), run(q, q, q))
        run.train()
        assert torch.equal(run(q, q, q), run(q, q, q)) != noise


@pytest.mark.parametrize("kind", ["dense", "random", "factorised_dense", "factorised_random"])
def test_synthesizer_ignores_the_keys(kind):
    run = attention.build("synthesizer", kind=kind, num_kv_heads=2, head_dim=16, max_length=30)
    q, k, v = (torch.randn(2, 20, 2, 16, requires_grad=True) for _ in range(3))
    out = run(q, k, v, causal=True)
    assert torch.equal(out, run(q, torch.full_like(k, torch.nan), v, causal=True))
    of_q, of_k, of_v = torch.autograd.grad(out.square().sum(), (q, k, v), allow_unused=True)
    assert of_k is None
    assert (of_q is None) == kind.endswith("random")
    assert of_v.abs().max() > 0


@pytest.mark.parametrize("kind", ["random", "factorised_random"])
def test_random_weights_that_are_not_learned(kind):
    run = attention.build("synthesizer", kind=kind, learned=False, num_kv_heads=2, max_length=30)
    assert not list(run.parameters())
    assert all(x.std() > 0.3 for x in run.state_dict().values())


@pytest.mark.parametrize(
    ("name", "parameters", "projections"),
    [
        ("softmax", {}, "qkv"),
        ("reformer", {"head_dim": 8}, "qv"),
        ("synthesizer", {"head_dim": 8, "num_kv_heads": 2}, "qv"),
        ("synthesizer", {"kind": "random", "num_kv_heads": 2}, "v"),
    ],
)
def test_what_is_not_read_is_not_projected(name, parameters, projections):
    module = MultiheadAttention(16, 2, attention.build(name, **parameters))
    assert {n[0] for n, _ in module.named_parameters() if n[1:6] == "_proj"} == set(projections)
    x = torch.randn(2, 9, 16)
    module(x)[0].sum().backward()
    assert all(p.grad is not None for p in module.parameters())


@pytest.mark.parametrize("causal", [True, False])
def test_with_one_bucket_reformer_is_full_attention_but_for_oneself(causal):
    """All vectors on one side of the one direction there is: one bucket, one chunk."""
    run = attention.build("reformer", rounds=2, chunk=64, buckets=2, head_dim=8).double()
    q, k, v = (torch.randn(2, 50, 2, 8, dtype=torch.float64) for _ in range(3))
    run.rotations.zero_()
    run.rotations[:, 0] = 1
    q[..., 0] = q[..., 0].abs()
    out = run(q, k, v, causal=causal)
    scores = torch.einsum("bihd,bjhd->bhij", q, torch.nn.functional.normalize(q, dim=-1)) / 8**0.5
    scores = scores - 1e5 * torch.eye(50, dtype=torch.float64)
    if causal:
        scores = scores.masked_fill(torch.ones(50, 50, dtype=torch.bool).triu(1), -torch.inf)
    close(out, torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v))


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("reformer", {"buckets": 5}, "buckets must be even"),
        ("reformer", {"redraw_interval": 0}, "redraw_interval must be a positive int"),
        ("linformer", {"sharing": "layerwise"}, "sharing must be one of none, headwise, key_value"),
        ("sinkhorn", {"temperature": 0}, "temperature must be a positive finite number"),
        ("synthesizer", {"kind": "factorized"}, "kind must be one of dense, random"),
        ("synthesizer", {"learned": False}, "learned must be True for kind 'dense'"),
    ],
)
def test_wrong_parameters(name, parameters, message):
    with pytest.raises(ValueError, match=message):
        attention.build(name, **parameters)


@pytest.mark.parametrize("name", ["linformer", "sinkhorn", "synthesizer", "bigbird"])
def test_more_tokens_than_there_are_weights_for(name):
    run = attention.fit(name, {}, num_kv_heads=2, head_dim=8, max_length=16)
    q = torch.randn(1, 17, 2, 8)
    with pytest.raises(ValueError, match=rf"attention '{name}' has .* for 16 positions, but got 17 tokens"):
        run(q, q, q)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("sinkhorn", {}),
        ("synthesizer", {}),
        ("synthesizer", {"kind": "factorised_dense"}),
        ("synthesizer", {"kind": "random"}),
        ("synthesizer", {"kind": "factorised_random"}),
        ("linformer", {"sharing": "none"}),
        ("bigbird", {}),
    ],
)
@pytest.mark.parametrize("heads", [1, 3, 24])
def test_another_number_of_heads(name, parameters, heads):
    """One head too: its numbers would be spread over all weights without a word."""
    run = attention.build(name, **parameters)
    q, k = torch.randn(1, 5, 24, 64), torch.randn(1, 5, heads, 64)
    message = (
        f"k and v must have {run.num_kv_heads} key heads, the num_kv_heads of this {name}, but got {heads}"
    )
    with pytest.raises(ValueError, match=message):
        run(q, k, k)
    k = torch.randn(1, 5, run.num_kv_heads, 64)
    assert run(q, k, k).shape == q.shape


@pytest.mark.parametrize("name", ["sinkhorn", "synthesizer"])
def test_heads_of_another_size_than_the_network(name):
    q = torch.randn(1, 5, 8, 32)
    with pytest.raises(ValueError, match=f"heads of 64, the head_dim of this {name}, but got 32"):
        attention.build(name)(q, q, q)


def test_heads_of_another_size():
    q = torch.randn(1, 5, 2, 8)
    with pytest.raises(ValueError, match="q must have heads of 64, the head_dim of this reformer, but got 8"):
        attention.build("reformer")(q, q, q)
