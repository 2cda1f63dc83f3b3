"""NaN and inf go where a number could go, and no further: what a query does not see cannot move a bit of it.
Zero times NaN is NaN, so that a weight of zero is not enough."""

import pytest
import torch

from cosformer import cosformer_attention

LENGTH, AT = 200, 130  # in the midst of a chunk
BACKENDS = pytest.mark.parametrize("backend", ["reference", "chunked"])
KINDS = {
    "plain": {},
    "short": {"length": 24, "at": 13},  # one square for all
    "grouped": {"heads": 4, "kv_heads": 2},
    "narrow window": {"windows": (5,)},
    "narrow windows": {"heads": 3, "windows": (2, 5, 9)},  # computed together
    "wide window": {"windows": (320,)},
    "both kinds of heads": {"heads": 2, "windows": (7, None)},
    "mask": {"mask": True},
    "packed": {"documents": (0, 100, 200)},
    "more queries": {"keys": 150, "at": 110},
}


class Call:
    """Causal attention over x = {q, k, v, g}, where g is the gradient of what comes out."""

    def __init__(self, backend, length=LENGTH, at=AT, heads=1, kv_heads=None, keys=None, mask=False,
                 documents=None, windows=None):  # fmt: skip
        self.at, self.options = at, {"causal": True, "horizon": 500, "backend": backend, "windows": windows}
        self.shift = 0 if keys is None else keys - length  # position of query i: i + shift
        kv_heads, keys = kv_heads or heads, keys or length
        torch.manual_seed(0)
        sizes = {"q": (length, heads), "k": (keys, kv_heads), "v": (keys, kv_heads), "g": (length, heads)}
        self.x = {name: torch.randn(1, t, h, 16) for name, (t, h) in sizes.items()}
        if mask:
            self.options["key_mask"] = torch.rand(1, keys) < 0.8
            self.options["key_mask"][0, at] = True
        if documents:
            self.options["cu_seqlens"] = torch.tensor(documents)

    def results(self, spoilt="", value=None, rows=slice(None)):
        """With one row of one tensor spoilt in two places, and gradients only from some rows."""
        x = {name: t.clone() for name, t in self.x.items()}
        if spoilt:
            x[spoilt][:, self.at - (self.shift if spoilt in "qg" else 0), -1, 3:5] = value
        g = torch.zeros_like(x["g"])
        g[:, rows] = x["g"][:, rows]
        leaves = [x[name].requires_grad_() for name in "qkv"]
        out = cosformer_attention(*leaves, **self.options)
        return dict(zip(("out", "dq", "dk", "dv"), (out, *torch.autograd.grad(out, leaves, g)), strict=True))


def same(found, clean, names, rows):
    for name in names:
        assert torch.equal(found[name][:, rows], clean[name][:, rows]), name
        assert clean[name][:, rows].any(), "there was something to compare"


@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@BACKENDS
def test_the_future_cannot_change_the_past(backend, kind, value):
    call = Call(backend, **KINDS[kind])
    queries, keys = slice(0, call.at - call.shift), slice(0, call.at)
    whole, early = call.results(), call.results(rows=queries)
    for spoilt in "qkv":
        found = call.results(spoilt, value)
        assert not found["out"].isfinite().all(), "what is seen is not hidden"
        same(found, whole, ("out", "dq"), queries)
        found = call.results(spoilt, value, queries)  # as where the loss does not use what comes later
        same(found, early, ("out", "dq"), queries)
        same(found, early, ("dk", "dv"), keys)


@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@BACKENDS
def test_a_query_cannot_change_the_gradient_of_a_key_that_it_does_not_see(backend, kind, value):
    call = Call(backend, **KINDS[kind])
    whole, later = call.results(), slice(call.at + 1, None)
    for spoilt in "qg":
        found = call.results(spoilt, value)
        assert not found["dq"].isfinite().all(), "what is seen is not hidden"
        same(found, whole, ("dk", "dv"), later)
        same(found, whole, ("dq",), slice(call.at - call.shift + 1, None))


@BACKENDS
def test_a_later_number_cannot_change_what_an_earlier_one_has_spoilt(backend):
    """Column by column: a row that is NaN in one place stays finite in the others."""
    q, k, v = (torch.randn(1, 40, 1, 16) for _ in range(3))
    v[0, 10, 0, 2] = torch.nan
    before = cosformer_attention(q, k, v, causal=True, backend=backend)
    v[0, 20, 0, 7] = torch.inf
    after = cosformer_attention(q, k, v, causal=True, backend=backend)
    assert torch.equal(before[:, :20].nan_to_num(7.0), after[:, :20].nan_to_num(7.0))
    assert after[0, 10:20, 0, 2].isnan().all()
    assert after[0, 20:, 0, 7].isnan().all()


@BACKENDS
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("windows", [None, (3, 20), (320, 5), (7, None)])
def test_a_masked_key_has_no_gradient_whatever_a_query_holds(backend, causal, windows):
    q, k, v = (torch.randn(1, 100, 2, 8) for _ in range(3))
    q[0, 50] = float("nan")
    mask = torch.arange(100)[None] >= 52
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = cosformer_attention(
        *leaves, windows=windows, causal=causal, key_mask=mask, horizon=200, backend=backend
    )
    for grad in torch.autograd.grad(out, leaves[1:], torch.ones_like(out)):
        assert torch.equal(grad[:, :52], torch.zeros_like(grad[:, :52]))
        assert (grad[:, 80:] != 0).any()
