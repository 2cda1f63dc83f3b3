"""Random features: unbiased where the paper says so, and nearer to what they stand for the more there are."""

import math

import pytest
import torch
import torch.nn.functional as F

from cosformer import attention, random_features
from cosformer.attention.performer import orthogonal_gaussian

DIM = 8
SIZES = (128, 512, 2048, 8192)
DRAWS = 12


def weighted(kernel, v, causal):
    """Attention with the weights of a kernel [B, H, T, T]."""
    kernel = kernel.tril() if causal else kernel
    return torch.einsum("bhij,bjhe->bihe", kernel / kernel.sum(-1, keepdim=True), v)


def softmax_over(q, k):
    return torch.einsum("bihd,bjhd->bhij", q, k).exp()


def arccos_over(q, k):
    """The arc-cosine kernel of degree 1 of unit vectors (Cho and Saul, 2009), up to a factor."""
    cos = torch.einsum("bihd,bjhd->bhij", q, k).clamp(-1, 1)
    angle = cos.acos()
    return angle.sin() + (math.pi - angle) * cos


def unit(x):
    return F.normalize(x, dim=-1)


# What the mechanism stands for, by its own name of it: parameters, and the exact kernel of q and k.
EXACT = {
    "performer": ("performer", {}, lambda q, k: softmax_over(q / DIM**0.25, k / DIM**0.25)),
    "rfa, gaussian": ("rfa", {"scale": 0.9}, lambda q, k: softmax_over(0.9 * unit(q), 0.9 * unit(k))),
    "rfa, arccos": ("rfa", {"kernel": "arccos"}, lambda q, k: arccos_over(unit(q), unit(k))),
}


def build(name, parameters, features):
    sizes = {"num_kv_heads": 2, "head_dim": DIM, "features": features}
    return attention.fit(name, parameters | {"features": features}, **sizes).double()


def fitted_exponent(sizes, errors):
    x, y = torch.tensor(sizes).double().log(), torch.stack(errors).log()
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())


@torch.no_grad()
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("what", EXACT)
def test_the_error_falls_like_the_root_of_the_features(what, causal):
    name, parameters, kernel = EXACT[what]
    q, k, v = (torch.randn(1, 40, 2, DIM, dtype=torch.float64) for _ in range(3))
    q, k = 0.4 * q, 0.4 * k  # of moderate variance: the rate is that of large numbers, and tails hide it
    exact = weighted(kernel(q, k), v, causal)
    errors = []
    for features in SIZES:
        run = build(name, parameters, features)
        squares = []
        for _ in range(DRAWS):
            run.resample()
            squares.append((run(q, k, v, causal=causal) - exact).square().mean())
        errors.append(torch.stack(squares).mean().sqrt() / exact.square().mean().sqrt())
    exponent = fitted_exponent(SIZES, errors)
    print(f"{what}: errors {[round(float(e), 4) for e in errors]}, exponent {exponent:.2f}")
    assert -0.6 < exponent < -0.4, (exponent, errors)
    assert errors[-1] < 0.1


@torch.no_grad()
def test_weights_of_the_performer_are_those_of_softmax_on_average():
    """E[phi(q) . phi(k)] = exp(q . k / sqrt(D)), however few features; within five standard errors."""
    q, k = 0.7 * torch.randn(2, 1, 6, 1, DIM, dtype=torch.float64)
    exact = torch.einsum("bihd,bjhd->ij", q, k).div(DIM**0.5).exp()
    run = build("performer", {}, 11)
    found = []
    for _ in range(4000):
        run.resample()
        features = run.key_features(torch.cat([q, k]))  # unlike those of a query, they are not rescaled
        found.append(features[0, :, 0] @ features[1, :, 0].T)
    found = torch.stack(found)
    error = found.std(0) / len(found) ** 0.5
    assert ((found.mean(0) - exact).abs() < 5 * error).all()
    assert (error < 0.1 * exact).all()


def test_random_vectors_are_gaussian_and_orthogonal_in_blocks():
    one = orthogonal_gaussian(11, 4)
    assert one.shape == (11, 4)
    for block in one.split(4):
        products = block @ block.T
        assert (products - products.diag().diag()).abs().max() < 1e-12
    drawn_ = torch.stack([orthogonal_gaussian(3, 4) for _ in range(4000)])
    for moment, value in ((2, 1.0), (4, 3.0)):  # of a standard normal number
        found = drawn_.pow(moment)
        error = found.std(0) / len(found) ** 0.5
        assert ((found.mean(0) - value).abs() < 5 * error).all()
    assert (drawn_.mean(0).abs() < 5 / 4000**0.5).all()


def test_only_what_is_due_is_drawn_again():
    model = torch.nn.ModuleList(
        [attention.build("performer", redraw_interval=3), attention.build("rfa"), attention.build("relu"),
         attention.build("performer", redraw_interval=None)]
    )  # fmt: skip
    before = [x.clone() for x in model.buffers()]

    def changed():
        return [not torch.equal(a, b) for a, b in zip(before, model.buffers(), strict=True)]

    assert random_features.resample(model, step=0) == 0
    assert changed() == [False, False, False]
    assert random_features.resample(model, step=4) == 1
    assert changed() == [False, True, False]
    assert random_features.resample(model, step=6) == 2
    assert changed() == [True, True, False]


def test_large_keys_and_queries_stay_finite():
    """In float32, ten times larger than a normal head; and a padded token of zeros."""
    run = attention.build("performer", head_dim=64)
    q, k, v = (torch.randn(1, 30, 2, 64) for _ in range(3))
    for scale in (0.0, 1.0, 10.0):
        inputs = [(scale * x).requires_grad_() for x in (q, k)] + [v.clone().requires_grad_()]
        out = run(*inputs, causal=True)
        out.square().sum().backward()
        assert all(x.isfinite().all() for x in (out, *(i.grad for i in inputs)))


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("performer", {"features": 0}, "features must be a positive int"),
        ("performer", {"redraw_interval": 0}, "redraw_interval must be a positive int"),
        ("rfa", {"kernel": "laplace"}, "kernel must be one of gaussian, arccos"),
        ("rfa", {"gate": 1}, "gate must be True or False"),
        ("rfa", {"scale": 0}, "scale must be a positive finite number"),
    ],
)
def test_mistakes(name, parameters, message):
    with pytest.raises((ValueError, TypeError), match=message):
        attention.build(name, **parameters)


@pytest.mark.parametrize("name", ["performer", "rfa"])
def test_heads_of_another_size(name):
    q = torch.randn(1, 3, 8, 32)
    with pytest.raises(ValueError, match="heads of 64"):
        attention.build(name)(q, q, q)


def test_a_gate_has_a_direction():
    q = torch.randn(1, 3, 8, 64)
    gated = attention.build("rfa", gate=True)
    with pytest.raises(ValueError, match="causal=False was asked for, but its trait bidirectional is False"):
        gated(q, q, q)
    gated(q, q, q, causal=True)
    assert attention.traits("rfa").bidirectional
