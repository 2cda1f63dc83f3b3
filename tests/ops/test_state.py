"""The state: a value of constant size that can be moved, picked from and carried."""

from dataclasses import FrozenInstanceError, fields

import pytest
import torch
from torch.utils import _pytree as pytree

from cosformer import CosformerState, cosformer_attention

from .cases import distance, make

TENSORS = ("numerator", "denominator", "positions")


def carried(batch=3, length=5, dtype=torch.float64, horizon=200, **more):
    """A state after some tokens."""
    q, k, v = make(
        batch=batch, tq=length, heads=4, kv_heads=2, dim=8, value_dim=6, dtype=dtype
    ).tensors.values()
    return cosformer_attention(q, k, v, causal=True, horizon=horizon, return_state=True, **more)[1]


def assert_same(a, b):
    for name in TENSORS:
        assert torch.equal(getattr(a, name), getattr(b, name)), name
    assert (a.seen, a.horizon) == (b.seen, b.horizon)


@pytest.mark.parametrize("used", ["out", "numerator", "denominator"])
def test_gradient_where_only_one_result_is_used(used):
    """What nothing downstream uses sends back no gradient at all."""
    grads = []
    for backend in ("chunked", "reference"):
        torch.manual_seed(0)
        case = make(tq=200, state=True, causal=True)
        leaves = [x.requires_grad_() for x in case.tensors.values()]
        out, state = case.call(backend)
        result = out if used == "out" else getattr(state, used)
        grads.append(torch.autograd.grad(result.square().sum(), leaves, materialize_grads=True))
    for ours, paper in zip(*grads, strict=True):
        assert distance(ours, paper) <= 1e-10


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_zeros(dtype):
    state = CosformerState.zeros(3, 2, 8, 6, horizon=100, dtype=dtype)
    assert state.numerator.shape == (3, 2, 2, 8, 6)
    assert state.denominator.shape == (3, 2, 2, 8)
    assert state.positions.tolist() == [0, 0, 0]
    assert (state.batch, state.seen, state.horizon) == (3, 0, 100)
    assert state.numerator.dtype == state.denominator.dtype == dtype
    assert not state.numerator.any()
    assert not state.denominator.any()
    assert CosformerState.zeros(3, 2, 8, horizon=1).numerator.shape == (3, 2, 2, 8, 8)


@pytest.mark.parametrize("backend", ["chunked", "reference"])
def test_zeros_are_the_state_before_the_first_token(backend):
    case = make(batch=3, tq=70, dim=8, causal=True, horizon=100, return_state=True)
    out, after = case.call(backend)
    zeros = CosformerState.zeros(3, 2, 8, horizon=100, dtype=torch.float64)
    out_, after_ = case.call(backend, state=zeros)
    torch.testing.assert_close(out_, out, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(after_.numerator, after.numerator, rtol=1e-10, atol=1e-12)
    assert (after_.seen, after_.positions.tolist()) == (70, [70, 70, 70])


@pytest.mark.parametrize("backend", ["chunked", "reference"])
@pytest.mark.parametrize("causal", [True, False])
def test_holds_the_sums_it_documents(backend, causal):
    q, k, v = make(batch=2, tq=130, heads=4, kv_heads=2, dim=8, value_dim=6).tensors.values()
    _, state = cosformer_attention(q, k, v, causal=causal, horizon=300, return_state=True, backend=backend)
    theta = torch.pi / 2 * torch.arange(130, dtype=torch.float64) / 300
    turn = torch.stack([theta.cos(), theta.sin()])
    numerator = torch.einsum("cj,bjhd,bjhe->bhcde", turn, k.relu(), v)
    denominator = torch.einsum("cj,bjhd->bhcd", turn, k.relu())
    torch.testing.assert_close(state.numerator, numerator, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(state.denominator, denominator, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("backend", ["chunked", "reference"])
def test_sums_are_wide(dtype, backend):
    state = carried(dtype=dtype, backend=backend)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert state.numerator.dtype == state.denominator.dtype == wide
    assert state.positions.dtype == torch.int64


def test_is_as_large_after_a_thousand_tokens_as_after_one():
    one, thousand = carried(length=1, horizon=2000), carried(length=1000, horizon=2000)
    assert one.nbytes == thousand.nbytes == 3 * 2 * 2 * 8 * (6 + 1) * 8 + 3 * 8
    assert [one.seen, thousand.seen] == [1, 1000]
    for name in TENSORS:
        assert getattr(one, name).shape == getattr(thousand, name).shape
        held = getattr(thousand, name)
        assert held.untyped_storage().nbytes() == held.nbytes, f"{name} is a view that keeps more alive"


def test_positions_count_masked_keys():
    mask = torch.tensor([[False] * 4 + [True], [True] * 5, [False] * 5])
    assert carried(key_mask=mask).positions.tolist() == [5, 5, 5]


def test_select():
    state = carried()
    picked = state.select(torch.tensor([2, 0, 2, 1]))
    assert picked.batch == 4
    for row, source in enumerate((2, 0, 2, 1)):
        for name in TENSORS:
            assert torch.equal(getattr(picked, name)[row], getattr(state, name)[source])
    assert (picked.seen, picked.horizon) == (state.seen, state.horizon)


def test_a_short_document_selected_from_a_pack_has_only_its_own_past():
    """What a long neighbour has seen must not use up the horizon of a short one."""
    q, k, v = make(tq=100, documents=2).tensors.values()
    packed = {"causal": True, "horizon": 100, "return_state": True}
    _, state = cosformer_attention(q, k, v, cu_seqlens=torch.tensor([0, 90, 100]), **packed)
    _, own = cosformer_attention(q[:, 90:], k[:, 90:], v[:, 90:], **packed)
    short = state.select(torch.tensor([1]))
    torch.testing.assert_close(
        cosformer_attention(q[:, :50], k[:, :50], v[:, :50], state=short, **packed)[0],
        cosformer_attention(q[:, :50], k[:, :50], v[:, :50], state=own, **packed)[0],
        rtol=1e-10, atol=1e-12,
    )  # fmt: skip


def test_repeat():
    state = carried()
    assert_same(state.repeat(2), state.select(torch.tensor([0, 0, 1, 1, 2, 2])))


def test_continues_the_rows_it_was_selected_for():
    """Beam search: reordered and repeated rows go on as if they had been so from the start."""
    q, k, v = make(batch=3, tq=40).tensors.values()
    options = {"causal": True, "horizon": 100}
    order = torch.tensor([2, 0, 0])
    _, state = cosformer_attention(q[:, :30], k[:, :30], v[:, :30], return_state=True, **options)
    rest = (x[:, 30:][order] for x in (q, k, v))
    out = cosformer_attention(*rest, state=state.select(order), **options)
    whole = cosformer_attention(q[order], k[order], v[order], **options)[:, 30:]
    torch.testing.assert_close(out, whole, rtol=1e-10, atol=1e-12)


def test_to():
    state = carried()
    narrow = state.to(torch.float32)
    assert narrow.numerator.dtype == narrow.denominator.dtype == torch.float32
    assert narrow.positions.dtype == torch.int64
    assert_same(narrow.to(dtype=torch.float64), narrow.to("cpu", torch.float64))
    away = state.to("meta")
    assert {getattr(away, name).device.type for name in TENSORS} == {"meta"}
    assert (away.seen, away.horizon) == (state.seen, state.horizon)
    assert_same(state.to("cpu"), state)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_to_never_narrows(dtype):
    with pytest.raises(ValueError, match=f"{dtype}.*float32 or float64"):
        carried().to(dtype)


def test_detach_and_clone():
    q, k, v = (x.requires_grad_() for x in make(tq=5).tensors.values())
    _, state = cosformer_attention(q, k, v, causal=True, horizon=20, return_state=True)
    assert state.numerator.requires_grad
    assert state.denominator.requires_grad
    free = state.detach()
    assert not free.numerator.requires_grad
    assert not free.denominator.requires_grad
    assert_same(free, state)
    copy = state.clone()
    assert copy.numerator.requires_grad
    assert_same(copy, state)
    for name in TENSORS:
        assert getattr(copy, name).data_ptr() != getattr(state, name).data_ptr()


@pytest.mark.parametrize("backend", ["chunked", "reference"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", [{"tq": 1}, {"tq": 70}, {"tq": 300}, {"tq": 40, "documents": 3}], ids=str)
def test_a_call_leaves_the_incoming_state_as_it_was(kind, causal, backend):
    case = make(state=True, causal=causal, dim=8, **kind)
    names = [name for name in TENSORS if name in case.tensors]
    before = {name: case.tensors[name].clone() for name in names}
    positions = case.options["state"].positions.clone()
    case.results(backend)  # forward and backward
    _, after = case.call(backend)
    after.numerator.zero_()
    after.denominator.zero_()
    after.positions.zero_()
    for name in names:
        assert torch.equal(case.tensors[name], before[name]), name
    assert torch.equal(case.options["state"].positions, positions)


def test_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        carried().seen = 7


def test_is_a_pytree():
    state = carried()
    leaves, spec = pytree.tree_flatten({"layer": state})
    assert len(leaves) == sum(getattr(state, f.name) is not None for f in fields(state))
    assert_same(pytree.tree_unflatten(leaves, spec)["layer"], state)
    doubled = pytree.tree_map_only(torch.Tensor, lambda x: 2 * x, state)
    assert isinstance(doubled, CosformerState)
    assert torch.equal(doubled.numerator, 2 * state.numerator)
    assert (doubled.seen, doubled.horizon) == (state.seen, state.horizon)
