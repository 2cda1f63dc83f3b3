"""Packed documents by the Hopper kernels, on a GPU: as accurate as rows, and none affects another."""

import pytest
import torch

from cosformer import cosformer_attention
from tests.ops.cases import is_close, make
from tests.ops.hopper.on_gpu import (
    both_ways,
    bounds_of,
    in_double,
    inputs,
    on_a_gpu,
    random_bounds,
    results,
)

pytestmark = on_a_gpu


@both_ways
@pytest.mark.parametrize("dim", [64, 128])
def test_a_document_of_nan_changes_no_other(dim, causal, cut):
    case = make(tq=300, dim=dim, documents=2, causal=causal, dtype=torch.bfloat16)
    case.options["cu_seqlens"] = torch.tensor([0, 70, 135, 135, 300])
    sick = torch.zeros(300, dtype=torch.bool, device="cuda")
    sick[70:135] = True
    grad = torch.randn(1, 300, 2, dim, device="cuda", dtype=torch.bfloat16)
    found = []
    for value in (0.5, torch.nan):
        leaves = {n: x.cuda().masked_fill(sick[:, None, None], value) for n, x in case.tensors.items()}
        leaves = {n: x.requires_grad_() for n, x in leaves.items()}
        out = type(case)(leaves, case.options).on("cuda").call("hopper")
        grads = torch.autograd.grad(out, list(leaves.values()), grad.masked_fill(sick[:, None, None], value))
        found.append((out, *grads))
    for well, ill in zip(*found, strict=True):
        assert torch.equal(well[:, ~sick], ill[:, ~sick])


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("what", "qkvg")
def test_nan_of_a_short_document_stays_in_it(what, value, dim):
    """Neighbours that share its tile are computed again without it."""
    bounds = [0, 20, 33, 50, 150, 170, 234, 240]
    cu = torch.tensor(bounds, device="cuda")
    x = dict(zip("qkvg", torch.randn(4, 1, 240, 2, dim, device="cuda", dtype=torch.bfloat16), strict=True))

    def made():
        leaves = [x[n].clone().requires_grad_() for n in "qkv"]
        out = cosformer_attention(*leaves, cu_seqlens=cu, horizon=240, backend="hopper")
        return (out.detach(), *torch.autograd.grad(out, leaves, x["g"]))

    well = made()
    x[what][0, 25, 1, 3] = value
    ill = made()
    own = torch.zeros(240, 2, dtype=torch.bool, device="cuda")
    own[20:33, 1] = True
    for a, b in zip(well, ill, strict=True):
        assert b[:, ~own].isfinite().all()
        torch.testing.assert_close(a[:, ~own], b[:, ~own], atol=2e-2, rtol=2e-2)
    assert not all(y[:, own].isfinite().all() for y in ill)


@both_ways
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("sick", [(20, 33), (50, 150), (240, 1240)], ids=str)
def test_nan_of_keys_is_seen_in_the_gradient_of_queries(sick, dim, causal, cut):
    """Of documents that share a tile, have several, or are cut."""
    cu = torch.tensor([0, 20, 33, 50, 150, 170, 234, 240, 1240], device="cuda")
    q, k, v, g = torch.randn(4, 1, 1240, 2, dim, device="cuda", dtype=torch.bfloat16)
    own = slice(*sick)
    k[:, own] = torch.nan
    leaves = [x.requires_grad_() for x in (q, k, v)]
    dq = results(leaves, "hopper", g, causal=causal, cu_seqlens=cu, horizon=1240)[1]
    assert dq[:, own][q[:, own] > 0].isnan().all()
    assert dq[:, : sick[0]].isfinite().all()
    assert dq[:, sick[1] :].isfinite().all()


DOCUMENTS = {
    "1,000": lambda: random_bounds(1000, 30000),
    "odd": lambda: bounds_of(1, 63, 64, 65, 0, 0, 64, 63, 680, 63, 1, 0, 1936, 1, 999, 0),
    "one": lambda: bounds_of(4000),
    "long": lambda: bounds_of(9000, 30, 12000, 5000),  # longer than a split
}


@both_ways
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("documents", DOCUMENTS)
def test_documents(documents, dtype, causal, cut):
    cu = DOCUMENTS[documents]().to("cuda", dtype)
    length = int(cu[-1])
    x = inputs(1, length, 2, 64)
    grad = torch.randn_like(x[2])
    options = {"causal": causal, "cu_seqlens": cu, "horizon": length}
    exact = results(in_double(x), "chunked", grad, **options)
    for truth, mine in zip(exact, results(x, "hopper", grad, **options), strict=True):
        assert is_close(mine, truth, 5e-3)


@both_ways
@pytest.mark.parametrize("value", [3.0, torch.inf, torch.nan])
def test_what_a_document_holds_changes_no_bit_of_another(value, causal):
    """Bidirectional, documents of one tile are computed again alone if one of them holds a number that is not
    finite: that rounds differently."""
    cu = DOCUMENTS["odd"]().cuda()
    sick = torch.zeros(int(cu[-1]), dtype=torch.bool, device="cuda")
    for i in (3, 6, 8, 12):  # 65, 64, 680 and 1,936 tokens, among others that are well
        sick[cu[i] : cu[i + 1]] = True
    x = inputs(1, len(sick), 2, 64)
    grad = torch.randn_like(x[2])
    found = []
    for fill in (False, True):
        y = [z.detach().masked_fill(sick[:, None, None] & fill, value).requires_grad_() for z in x]
        g = grad.masked_fill(sick[:, None, None] & fill, value)
        found.append(results(y, "hopper", g, causal=causal, cu_seqlens=cu, horizon=len(sick)))
    length = cu.diff()
    short = torch.repeat_interleave(length <= 64, length)
    again = short if not causal and value != 3.0 else torch.zeros_like(short)
    for well, ill in zip(*found, strict=True):
        assert torch.equal(well[:, ~sick & ~again], ill[:, ~sick & ~again])
        torch.testing.assert_close(well[:, ~sick & again], ill[:, ~sick & again], atol=2e-2, rtol=2e-2)
    assert not torch.equal(found[0][0][:, sick], found[1][0][:, sick])


@both_ways
def test_a_cuda_graph_reads_the_current_bounds(causal):
    x = inputs(1, 30000, 2, 64)
    grad = torch.randn_like(x[2])
    cu = random_bounds(300, 30000).cuda()
    options = {"causal": causal, "cu_seqlens": cu, "horizon": 30000}
    results(x, "hopper", grad, **options)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        captured = results(x, "hopper", grad, **options)
    cu.copy_(torch.cat([torch.zeros(280, dtype=torch.int64), random_bounds(20, 30000)]))
    graph.replay()
    for a, b in zip(captured, results(x, "hopper", grad, **options), strict=True):
        assert torch.equal(a, b)


def test_bounds_of_both_types_with_states():
    """One kernel, compiled once, takes both."""
    x = inputs(1, 700, 2, 64)
    bounds = torch.tensor([0, 3, 70, 400, 700], device="cuda")
    options = {"causal": True, "horizon": 700, "return_state": True, "backend": "hopper"}
    found = [
        cosformer_attention(*x, cu_seqlens=cu, **options) for cu in (bounds, bounds.int(), bounds)
    ]  # fmt: skip
    for out, state in found[1:]:
        assert torch.equal(out, found[0][0])
        assert torch.equal(state.numerator, found[0][1].numerator)
