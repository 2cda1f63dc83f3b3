"""One-vs-each: a lower bound of the log-softmax, and a sum that may be sampled."""

import math

import pytest
import torch
from torch.nn import functional as F

from cosformer.nn.one_vs_each import one_vs_each, one_vs_each_loss


def scores(*shape):
    return 3 * torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
def test_it_bounds_the_log_softmax_from_below(classes):
    logits, labels = scores(200, classes), torch.randint(classes, (200,))
    exact = logits.log_softmax(-1).gather(-1, labels[:, None])[:, 0]
    bound = one_vs_each(logits, labels)
    if classes == 2:
        torch.testing.assert_close(bound, exact, rtol=1e-12, atol=1e-12)
    else:
        assert (bound < exact).all()


def test_it_is_the_papers_sum():
    logits = scores(5)
    expected = sum(-math.log1p(math.exp(float(logits[n] - logits[3]))) for n in (0, 1, 2, 4))
    assert float(one_vs_each(logits, torch.tensor(3))) == pytest.approx(expected, abs=1e-12)


def made(classes=12, batch=30):
    hidden = torch.randn(batch, 6, dtype=torch.float64, requires_grad=True)
    weight, bias = (
        torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((classes, 6), (classes,))
    )
    labels = torch.randint(classes, (batch,))
    labels[::7] = -100
    return hidden, weight, bias, labels


def test_all_classes_are_the_bound_of_the_labels_that_count():
    hidden, weight, bias, labels = made()
    kept = labels != -100
    expected = -one_vs_each(F.linear(hidden, weight, bias)[kept], labels[kept]).mean()
    torch.testing.assert_close(one_vs_each_loss(hidden, weight, labels, bias=bias), expected)
    doubled = one_vs_each_loss(hidden, weight, labels, bias=bias, num_items=2 * int(kept.sum()))
    torch.testing.assert_close(doubled, expected / 2)


def test_samples_are_right_on_average():
    """The mean of many draws lies within five of its standard errors: of the loss, and of its gradient."""
    hidden, weight, bias, labels = made()
    inputs = (hidden, weight, bias)

    def run(samples):
        loss = one_vs_each_loss(hidden, weight, labels, bias=bias, samples=samples)
        return torch.cat([loss[None], *(g.flatten() for g in torch.autograd.grad(loss, inputs))])

    exact = run(None)
    draws = torch.stack([run(4) for _ in range(600)])
    error = draws.std(0) / len(draws) ** 0.5
    assert ((draws.mean(0) - exact).abs() <= 5 * error + 1e-6).all()
    assert draws[:, 0].std() > 0
    torch.testing.assert_close(run(12), exact)


def test_samples_follow_the_generator():
    hidden, weight, _, labels = made()
    run = [
        one_vs_each_loss(hidden, weight, labels, samples=4, generator=torch.Generator().manual_seed(s))
        for s in (1, 1, 2)
    ]
    assert torch.equal(run[0], run[1])
    assert not torch.equal(run[0], run[2])


def test_nothing_to_learn_is_no_loss():
    hidden, weight, _, labels = made()
    loss = one_vs_each_loss(hidden, weight, torch.full_like(labels, -100), samples=4)
    assert loss == 0
    loss.backward()
    assert (hidden.grad == 0).all()


def test_too_few_samples():
    hidden, weight, _, labels = made()
    with pytest.raises(ValueError, match="samples must be at least 2"):
        one_vs_each_loss(hidden, weight, labels, samples=1)
    with pytest.raises(ValueError, match="samples must be a positive int"):
        one_vs_each_loss(hidden, weight, labels, samples=0)
