"""What a row of a head with a window does not see cannot move a bit of it, NaN included; what it sees is not
hidden."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="the package triton is not installed (there are none for this platform)")

from tests.ops.triton.window_cases import Call


def spoilt_rows(call, bad, value):
    """Results with `value` in rows `bad` of q, k, v and g, and the rows that see one of these, as queries and
    as keys; and clean results."""
    x = call.tensors()
    clean = call.run(x, None)
    for name, rows in bad.items():
        x[name][:, rows] = value
    w = call.weights(None)[0, 0]
    return clean, call.run(x, None), ~w.isnan()


@pytest.mark.parametrize(
    ("documents", "value", "causal"),
    [
        (None, torch.nan, True),
        ((70, 30, 50), torch.inf, False),
        pytest.param(None, torch.nan, False, marks=pytest.mark.thorough),
        pytest.param((70, 30, 50), torch.inf, True, marks=pytest.mark.thorough),
    ],
    ids=str,
)
def test_what_lies_beyond_a_narrow_window_cannot_move_a_bit(value, documents, causal):
    call = Call((5,), causal=causal, documents=documents)
    for name in "qkvg":
        clean, found, seen = spoilt_rows(call, {name: [68, 69, 100]}, value)
        queries = torch.zeros(150, dtype=torch.bool)
        keys = queries.clone()
        if name in "qg":
            queries[[68, 69, 100]] = True
        else:
            keys[[68, 69, 100]] = True
            queries |= (seen & keys[None, :]).any(1)
        keys |= (seen & queries[:, None]).any(0)
        if name != "g":
            assert torch.equal(found["out"][:, ~queries], clean["out"][:, ~queries]), name
            assert torch.equal(found["den"][..., ~queries], clean["den"][..., ~queries]), name
            bad = found["out"][0, :, 0].isfinite().logical_not().all(-1)
            assert torch.equal(bad, queries), name
        assert torch.equal(found["dq"][:, ~queries], clean["dq"][:, ~queries]), name
        for gradient in ("dk", "dv"):
            assert torch.equal(found[gradient][:, ~keys], clean[gradient][:, ~keys]), name
            assert not found[gradient][0, keys, 0].isfinite().all(-1).any() or name in "kv", name


@pytest.mark.parametrize("windows", [(5,), (320,)], ids=str)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_masked_nan_and_queries_without_a_gradient_have_no_influence(windows, causal):
    call = Call(windows, causal=causal, masked=True)
    x, mask = call.tensors(), call.mask()
    unused = torch.zeros(150, dtype=torch.bool)
    unused[60:75] = unused[3] = True
    x["g"][:, unused] = 0
    clean = call.run(x, mask)
    for name in "kv":
        x[name][~mask] = torch.nan
    assert all(torch.equal(clean[n], t) for n, t in call.run(x, mask).items())
    x["q"][:, unused] = torch.nan
    found = call.run(x, mask)
    for name in ("dq", "dk", "dv"):
        assert torch.equal(clean[name], found[name]), name
    assert (found["dq"][:, unused] == 0).all()
    assert (found["dk"][~mask.cpu()] == 0).all()
    assert (found["dv"][~mask.cpu()] == 0).all()


@pytest.mark.thorough
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_nan_beyond_a_wide_window_or_in_another_document(causal):
    """A window and a chunk further on; what comes from spoilt keys by way of queries that are used, once more
    as far."""
    call = Call((320,), tq=520, d=8, dv=8, causal=causal)
    clean, found, _ = spoilt_rows(call, {n: [60] for n in "kv"}, torch.nan)
    for name, axis in {"out": 1, "den": 2, "dq": 1}.items():
        assert torch.equal(*(t[name].narrow(axis, 444, 76) for t in (found, clean))), name
    clean, found, _ = spoilt_rows(call, {n: [60] for n in "qg"}, torch.nan)
    for name in ("dk", "dv"):
        assert torch.equal(found[name][:, 444:], clean[name][:, 444:]), name
    call = replace(call, tq=150, documents=(70, 80))
    clean, found, _ = spoilt_rows(call, {n: [69] for n in "qkvg"}, torch.nan)
    for name, axis in {"out": 1, "den": 2, "dq": 1, "dk": 1, "dv": 1}.items():
        assert torch.equal(*(t[name].narrow(axis, 70, 80) for t in (found, clean))), name
