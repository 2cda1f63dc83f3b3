"""Forward-mode derivatives: an error in a sentence, and not zeros."""

import dataclasses

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from cosformer import cosformer_attention

WINDOWS = pytest.mark.parametrize("windows", [None, [3, None]], ids=["horizon", "windows"])


def call(windows):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 9, 2, 4, dtype=torch.float64) for _ in range(3))

    def of_values(v):
        return cosformer_attention(q, k, v, causal=True, horizon=20, windows=windows)

    return of_values, v


def dual(function, v):
    with forward_ad.dual_level():
        function(forward_ad.make_dual(v, v))


def dual_under_a_mode(function, v):
    with FlopCounterMode(display=False):
        dual(function, v)


@WINDOWS
@pytest.mark.parametrize(
    "ask",
    [
        lambda f, v: torch.func.jvp(f, (v,), (v,)),
        lambda f, v: torch.func.linearize(f, v)[1](v),
        lambda f, v: torch.func.jacfwd(f)(v),
        dual,
        dual_under_a_mode,
        lambda f, v: torch.func.jvp(lambda v: torch.vmap(f)(v), (v[None],), (v[None],)),
    ],
    ids=["jvp", "linearize", "jacfwd", "dual", "mode", "jvp of vmap"],
)
def test_they_are_refused(ask, windows):
    """Traced calls gave a derivative of zero."""
    with pytest.raises(RuntimeError, match=r"has no forward-mode derivatives.*use those of reverse mode"):
        ask(*call(windows))


@pytest.mark.parametrize(("part", "windows"), [("numerator", None), ("values", [3, None])])
def test_those_of_a_state_are_refused(part, windows):
    q, k, v = (torch.randn(1, 9, 2, 4, dtype=torch.float64) for _ in range(3))
    options = {"causal": True, "horizon": 20, "windows": windows}
    _, state = cosformer_attention(q, k, v, return_state=True, **options)

    def after(past):
        past = dataclasses.replace(state, **{part: past})
        return cosformer_attention(q, k, v, state=past, **options)

    with pytest.raises(RuntimeError, match=r"has no forward-mode derivatives"):
        dual_under_a_mode(after, getattr(state, part))


def test_what_has_no_tangent_is_computed():
    function, v = call(None)
    plain = function(v)
    with forward_ad.dual_level():
        assert torch.equal(function(v), plain)
    one, scale = torch.ones(()), torch.full((), 3.0)
    _, change = torch.func.jvp(lambda s: torch.vmap(function)(v[None]) * s, (scale,), (one,))
    torch.testing.assert_close(change[0], plain)
