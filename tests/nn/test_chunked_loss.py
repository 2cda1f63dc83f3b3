"""The cross entropy in chunks is that of all logits at once, and never has them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cosformer.nn import chunked_cross_entropy

ROWS, LENGTH, WIDTH, CLASSES = 2, 13, 8, 30


def drawn(dtype=torch.float64):
    torch.manual_seed(0)
    hidden = torch.randn(ROWS, LENGTH, WIDTH, dtype=dtype, requires_grad=True)
    head = nn.Linear(WIDTH, CLASSES, bias=False, dtype=dtype)
    targets = torch.randint(CLASSES, (ROWS, LENGTH))
    targets[0, 3:6] = -100
    return hidden, head, targets


def whole(hidden, head, targets, num_items=None):
    total = F.cross_entropy(head(hidden).flatten(0, 1), targets.flatten(), reduction="sum")
    return total / ((targets != -100).sum() if num_items is None else num_items)


@pytest.mark.parametrize("num_items", [None, 7, torch.tensor(100)], ids=str)
@pytest.mark.parametrize("chunk", [1, 5, 13, 26, 1000])
def test_as_all_at_once(chunk, num_items):
    hidden, head, targets = drawn()
    found = chunked_cross_entropy(head, hidden, targets, chunk=chunk, num_items=num_items)
    expected = whole(hidden, head, targets, num_items)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    wanted = (hidden, head.weight)
    for a, b in zip(torch.autograd.grad(found, wanted), torch.autograd.grad(expected, wanted), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-14)


def test_gradcheck():
    hidden, head, targets = drawn()
    assert torch.autograd.gradcheck(lambda x: chunked_cross_entropy(head, x, targets, chunk=5), [hidden])


def test_targets_that_do_not_count_move_nothing():
    hidden, head, targets = drawn()
    (gradient,) = torch.autograd.grad(chunked_cross_entropy(head, hidden, targets, chunk=4), [hidden])
    assert (gradient[0, 3:6] == 0).all()
    assert (gradient[1] != 0).any()


def test_the_logits_of_all_tokens_never_exist():
    """Neither in the forward nor in the backward is any tensor larger than the logits of a chunk."""
    hidden, head, targets = drawn()
    largest, kept = [], []

    def seen(_module, _inputs, logits):
        largest.append(logits.numel())
        return logits

    head.register_forward_hook(seen)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        loss = chunked_cross_entropy(head, hidden, targets, chunk=5)
    assert max(kept, default=0) <= hidden.numel() + head.weight.numel()
    calls = len(largest)
    loss.backward()
    assert max(largest) == 5 * CLASSES
    assert len(largest) == 2 * calls == 2 * 6  # ceil(26 / 5), and again in the backward


def test_half_precision_is_summed_in_float32():
    hidden, head, targets = drawn(torch.bfloat16)
    found = chunked_cross_entropy(head, hidden, targets, chunk=5)
    assert found.dtype == torch.float32
    exact = whole(hidden.double(), lambda x: x @ head.weight.double().T, targets)
    torch.testing.assert_close(found.double(), exact, rtol=5e-3, atol=0)


def test_compiled():
    hidden, head, targets = drawn(torch.float32)
    compiled = torch.compile(lambda x: chunked_cross_entropy(head, x, targets, chunk=5), backend="aot_eager")
    torch.testing.assert_close(compiled(hidden), whole(hidden, head, targets))


def test_mistakes_are_told():
    hidden, head, targets = drawn()
    with pytest.raises(ValueError, match="chunk must be a positive int, but got 0"):
        chunked_cross_entropy(head, hidden, targets, chunk=0)
    with pytest.raises(
        ValueError, match=r"targets must have the shape of hidden .* \[2, 13\], but got \[2, 12\]"
    ):
        chunked_cross_entropy(head, hidden, targets[:, 1:], chunk=4)
