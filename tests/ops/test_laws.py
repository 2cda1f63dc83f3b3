"""What must hold whatever the numbers are: the boundary law and its kin."""

import itertools

import pytest
import torch

from cosformer import CosformerState, cosformer_attention

from .cases import distance, make

both_ways = pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
NAN = float("nan")


def qkv(batch=1, length=200, heads=2, dim=16, dtype=torch.float64, requires_grad=False):
    return [
        torch.randn(batch, length, heads, dim, dtype=dtype, requires_grad=requires_grad) for _ in range(3)
    ]


@pytest.mark.parametrize("cut", [0, 1, 63, 64, 100, 198])
def test_the_future_cannot_change_the_past(cut):
    q, k, v = qkv()
    before = cosformer_attention(q, k, v, causal=True, horizon=200)
    for x in (q, k, v):
        x[:, cut + 1 :] = torch.randn_like(x[:, cut + 1 :]) * 100
    after = cosformer_attention(q, k, v, causal=True, horizon=200)
    assert torch.equal(before[:, : cut + 1], after[:, : cut + 1])
    assert not torch.equal(before[:, cut + 1 :], after[:, cut + 1 :])


@pytest.mark.parametrize("garbage", [NAN, float("inf"), 1e30])
@both_ways
def test_masked_keys_have_no_influence(causal, garbage):
    q, k, v = qkv(batch=3)
    mask = torch.rand(3, 200) > 0.3
    clean = cosformer_attention(q, k, v, causal=causal, key_mask=mask)
    k[~mask] = v[~mask] = garbage
    assert torch.equal(cosformer_attention(q, k, v, causal=causal, key_mask=mask), clean)


@both_ways
def test_masked_keys_are_as_good_as_absent(causal):
    """Masking keeps positions: a key left out of the sums, the distances of the others unchanged."""
    q, k, v = qkv(length=150)
    mask = torch.ones(1, 150, dtype=torch.bool)
    mask[:, :50] = False
    masked = cosformer_attention(q, k, v, causal=causal, horizon=300, key_mask=mask)
    absent = cosformer_attention(q, k[:, 50:], v[:, 50:], causal=causal, horizon=300, query_offset=-50)
    assert distance(masked, absent) < 1e-12


@pytest.mark.parametrize("side", ["left", "right", "inside"])
@both_ways
def test_padding_of_nan_changes_nothing_and_gets_no_gradient(side, causal):
    lengths, total = (70, 128, 200), 200
    pad = {"left": lambda n: range(total - n, total), "right": range,
           "inside": lambda n: [*range(n // 2), *range(total - n + n // 2, total)]}[side]  # fmt: skip
    real = torch.zeros(len(lengths), total, dtype=torch.bool)
    for row, n in enumerate(lengths):
        real[row, list(pad(n))] = True
    tensors = [torch.full((len(lengths), total, 2, 16), NAN, dtype=torch.float64) for _ in range(3)]
    for x in tensors:
        x[real] = torch.randn_like(x[real])
    q, k, v = (x.requires_grad_() for x in tensors)
    out = cosformer_attention(q, k, v, causal=causal, horizon=500, key_mask=real)
    weight = torch.randn(out.shape, dtype=out.dtype)
    grads = torch.autograd.grad(out[real], (q, k, v), weight[real])
    for g in grads:
        assert torch.equal(g[~real], torch.zeros_like(g[~real]))
    for row in range(len(lengths)):
        if side == "inside":  # distances across the gap count the gap: compare with zeros for padding
            alone = [x[row : row + 1].detach().nan_to_num().requires_grad_() for x in (q, k, v)]
            o = cosformer_attention(*alone, causal=causal, horizon=500, key_mask=real[row : row + 1])
            mine = real[row]
            expected = torch.autograd.grad(o[:, mine], alone, weight[row : row + 1, mine])
            expected = [g[:, mine] for g in expected]
            o = o[:, mine]
        else:
            alone = [x[row, real[row]].detach()[None].requires_grad_() for x in (q, k, v)]
            o = cosformer_attention(*alone, causal=causal, horizon=500)
            expected = torch.autograd.grad(o, alone, weight[row, real[row]][None])
        assert distance(out[row, real[row]][None], o) < 1e-12
        for g, e in zip(grads, expected, strict=True):
            assert distance(g[row, real[row]][None], e) < 1e-12


@both_ways
def test_only_distances_matter(causal):
    """The same text after any number of masked positions, or seen from any origin, is the same text."""
    q, k, v = qkv()
    plain = cosformer_attention(q, k, v, causal=causal, horizon=1000)
    for shift in (1, 64, 333):
        state = CosformerState.zeros(1, 2, 16, horizon=1000.0, dtype=torch.float64)
        state = CosformerState(
            state.numerator, state.denominator, state.positions + shift, shift, state.horizon
        )
        shifted = cosformer_attention(q, k, v, causal=causal, horizon=1000, state=state)
        assert distance(shifted, plain) < 1e-12


@pytest.mark.parametrize("cut", [1, 2, 63, 64, 65, 150, 199])
def test_split_with_carried_state_is_the_whole(cut):
    q, k, v = qkv(batch=2, requires_grad=True)
    whole, end = cosformer_attention(q, k, v, causal=True, horizon=400, return_state=True)
    weight = torch.randn(whole.shape, dtype=whole.dtype)
    expected = torch.autograd.grad((whole * weight).sum() + end.numerator.sum(), (q, k, v))
    a, state = cosformer_attention(
        q[:, :cut], k[:, :cut], v[:, :cut], causal=True, horizon=400, return_state=True
    )
    b, state = cosformer_attention(
        q[:, cut:], k[:, cut:], v[:, cut:], causal=True, horizon=400, state=state, return_state=True
    )
    out = torch.cat([a, b], 1)
    grads = torch.autograd.grad((out * weight).sum() + state.numerator.sum(), (q, k, v))
    assert distance(out, whole) < 1e-12
    assert distance(state.numerator, end.numerator) < 1e-12
    assert distance(state.denominator, end.denominator) < 1e-12
    assert state.seen == end.seen == 200
    assert torch.equal(state.positions, end.positions)
    for g, e in zip(grads, expected, strict=True):
        assert distance(g, e) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_one_token_at_a_time_is_all_at_once(dtype):
    q, k, v = qkv(batch=2, length=130, dtype=dtype)
    whole = cosformer_attention(q, k, v, causal=True, horizon=130)
    state, steps = None, []
    for t in range(130):
        now = slice(t, t + 1)
        o, state = cosformer_attention(
            q[:, now], k[:, now], v[:, now], causal=True, horizon=130, state=state, return_state=True
        )
        steps.append(o)
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 4e-3}[dtype]
    assert distance(torch.cat(steps, 1), whole) < tolerance


def test_keys_turned_into_a_state_answer_like_keys():
    """Cross-attention: the state of the keys, computed once, in pieces, serves queries one by one."""
    q, (k, v) = qkv(length=40)[0], qkv(length=170)[:2]
    whole = cosformer_attention(q, k, v, horizon=300)
    nothing = torch.zeros(1, 1, 2, 16, dtype=torch.float64)
    state = None
    for a in (0, 100):
        part = slice(a, a + 100)
        _, state = cosformer_attention(
            nothing, k[:, part], v[:, part], horizon=300, state=state, return_state=True, query_offset=0
        )
    for t in range(40):
        o = cosformer_attention(
            q[:, t : t + 1], k[:, :0], v[:, :0], horizon=300, state=state, query_offset=t - 170
        )
        assert distance(o, whole[:, t : t + 1]) < 1e-12


LENGTHS = [3, 0, 64, 1, 300, 0, 40, 40, 257]


@both_ways
def test_packed_documents_are_each_alone(causal):
    bounds = torch.tensor([0, *LENGTHS]).cumsum(0)
    q, k, v = qkv(length=int(bounds[-1]), requires_grad=True)
    packed, states = cosformer_attention(
        q, k, v, causal=causal, horizon=400, cu_seqlens=bounds, return_state=True
    )
    weight = torch.randn(packed.shape, dtype=packed.dtype)
    grads = torch.autograd.grad((packed * weight).sum() + states.numerator.sum(), (q, k, v))
    assert states.positions.tolist() == LENGTHS
    assert states.seen == max(LENGTHS)
    for n, (a, b) in enumerate(itertools.pairwise(bounds)):
        if a == b:
            assert not states.numerator[n].any()
            continue
        alone = [x[:, a:b].detach().requires_grad_() for x in (q, k, v)]
        o, state = cosformer_attention(*alone, causal=causal, horizon=400, return_state=True)
        expected = torch.autograd.grad((o * weight[:, a:b]).sum() + state.numerator.sum(), alone)
        assert distance(packed[:, a:b], o) < 1e-12
        assert distance(states.numerator[n], state.numerator[0]) < 1e-12
        for g, e in zip(grads, expected, strict=True):
            assert distance(g[:, a:b], e) < 1e-12


@pytest.mark.parametrize("garbage", [None, NAN, float("inf")])
@pytest.mark.parametrize("touched", [0, 2, 4, 6])
@both_ways
def test_a_document_cannot_move_a_bit_of_another(causal, touched, garbage):
    bounds = torch.tensor([0, *LENGTHS]).cumsum(0)
    mine = slice(int(bounds[touched]), int(bounds[touched + 1]))
    others = torch.ones(int(bounds[-1]), dtype=torch.bool)
    others[mine] = False
    tensors = qkv(length=int(bounds[-1]), dtype=torch.float32)
    weight = torch.randn(1, int(bounds[-1]), 2, 16)

    def run():
        leaves = [x.clone().requires_grad_() for x in tensors]
        out = cosformer_attention(*leaves, causal=causal, horizon=400, cu_seqlens=bounds)
        return [out, *torch.autograd.grad(out, leaves, weight)]

    before = run()
    for x in tensors:
        x[:, mine] = torch.randn_like(x[:, mine]) if garbage is None else garbage
    for a, b in zip(before, run(), strict=True):
        assert torch.equal(a[:, others], b[:, others])


@pytest.mark.parametrize("kind", ["plain", "mask", "packed"])
@both_ways
def test_repeated_a_hundred_times_bit_for_bit(causal, kind):
    options = {"plain": {}, "mask": {"mask": True}, "packed": {"documents": 4}}[kind]
    case = make(tq=150, dtype=torch.float32, causal=causal, **options)
    first = case.results("chunked")
    for _ in range(99):
        again = case.results("chunked")
        assert all(torch.equal(first[name], again[name]) for name in first)


def nothing_to_see(name, q, k, v):
    """Calls in which some query has no weight at all."""
    if name == "negative queries":
        return (-q.abs(), k, v), {}, slice(None)
    if name == "negative keys":
        return (q, -k.abs(), v), {}, slice(None)
    if name == "first query before all keys":
        return (q, k, v), {"causal": True, "query_offset": -10}, slice(0, 10)
    mask = torch.ones(q.shape[:2], dtype=torch.bool)
    mask[0] = False
    return (q, k, v), {"key_mask": mask}, 0


@pytest.mark.parametrize("length", [1, 20, 200])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "name", ["negative queries", "negative keys", "first query before all keys", "fully masked row"]
)
def test_nothing_to_see_gives_zeros_and_finite_gradients(name, dtype, length):
    q, k, v = (x.to(dtype) for x in qkv(batch=2, length=length))
    tensors, options, where = nothing_to_see(name, q, k, v)
    leaves = [x.clone().requires_grad_() for x in tensors]
    out = cosformer_attention(*leaves, horizon=1000, **options)
    blank = out[where] if isinstance(where, int) else out[:, where]
    assert torch.equal(blank, torch.zeros_like(blank))
    grads = torch.autograd.grad(out, leaves, torch.randn_like(out))
    for x, g in zip(leaves, grads, strict=True):
        assert g.isfinite().all()
        if name == "fully masked row":
            assert torch.equal(g[0], torch.zeros_like(x[0]))


@both_ways
def test_fp16_at_large_magnitudes_has_no_inf(causal):
    q, k, v = (x.to(torch.float16) for x in qkv(length=300, dtype=torch.float32))
    big = 60000.0
    q, k, v = (x / x.abs().max() * big for x in (q, k, v))
    assert q.isfinite().all()
    out = cosformer_attention(q, k, v, causal=causal)
    assert out.isfinite().all()
    exact = cosformer_attention(q.double(), k.double(), v.double(), causal=causal, backend="reference")
    assert distance(out, exact) < 1e-3


@both_ways
def test_strides_do_not_matter(causal):
    q, k, v = qkv(length=150)
    plain = cosformer_attention(q, k, v, causal=causal)
    strided = [
        q.transpose(1, 2).contiguous().transpose(1, 2),
        torch.stack([k, k], -1)[..., 0],
        v.flip(1).contiguous().flip(1).expand_as(v),
    ]
    assert torch.equal(cosformer_attention(*strided, causal=causal), plain)


def test_an_output_is_never_shared_memory():
    """Results must survive later calls: the operator's room is used again."""
    q, k, v = qkv(length=300)
    out, state = cosformer_attention(q, k, v, causal=True, horizon=600, return_state=True)
    copies = out.clone(), state.numerator.clone()
    cosformer_attention(q * 2, k * 3, v * 5, causal=True, horizon=600, return_state=True)
    assert torch.equal(out, copies[0])
    assert torch.equal(state.numerator, copies[1])
