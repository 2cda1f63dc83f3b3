"""What fails the users of the authors' module does not happen here: one test for each report.

The numbers are those of the list in the paper notes; the ninth (no tests, no packaging) is the
project itself.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cosformer import CosformerAttention, cosformer_attention
from cosformer.ops.args import AttentionArgs
from cosformer.ops.autograd import Saved, Upstream
from cosformer.ops.chunked.op import Chunked
from cosformer.ops.windowed import WindowedBackend

from .cases import distance, make

BOTH = pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])


class LargestTensor(TorchDispatchMode):
    """How many numbers the largest tensor holds that any operation inside gives back."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        sizes = [x.numel() for x in tree_leaves(made) if isinstance(x, torch.Tensor)]
        self.numel = max([self.numel, *sizes])
        return made


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "recomputed"])
def test_1_causal_never_holds_a_state_for_every_position(kept):
    length, dim = 2048, 64
    q, k, v, grad = (torch.randn(1, length, 1, dim) for _ in range(4))
    args = AttentionArgs(q, k, v, *[None] * 5, True, 0, float(length), 1e-6, False, kept)
    backend = WindowedBackend(Chunked())
    with LargestTensor() as ours:
        made = backend.forward(args)
        backend.backward(
            args, Saved(made.out, made.den, made.kept if kept else None), Upstream(grad, None, None)
        )
    assert 0 < ours.numel <= 8 * q.numel() < length * dim * dim

    with LargestTensor() as theirs:  # the measure sees what it should: the authors' form is such a tensor
        torch.einsum("bthd,bthe->bthde", k, v).cumsum(1)
    assert theirs.numel == length * dim * dim


@pytest.mark.parametrize(("tq", "tk"), [(1, 40), (3, 64), (40, 130), (130, 40), (700, 701)])
def test_2_causal_with_queries_and_keys_of_other_lengths(tq, tk):
    case = make(tq=tq, tk=tk, heads=4, kv_heads=2, causal=True)
    ours, paper = case.results("auto"), case.results("reference")
    for name, expected in paper.items():
        assert distance(ours[name], expected) <= 1e-10, name
    if tq < tk:
        whole = torch.cat([torch.randn(2, tk - tq, 4, 16, dtype=torch.float64), case.tensors["q"]], 1)
        aligned = cosformer_attention(whole, case.tensors["k"], case.tensors["v"], **case.options)[:, -tq:]
        torch.testing.assert_close(ours["out"], aligned, rtol=1e-10, atol=1e-12)


@BOTH
def test_3_masks_are_honoured(causal):
    case = make(batch=1, tq=90, causal=causal, horizon=90)
    q, k, v = case.tensors.values()
    mask = torch.rand(1, 90) > 0.5
    masked = cosformer_attention(q, k, v, key_mask=mask, **case.options)
    assert distance(masked, cosformer_attention(q, k, v, **case.options)) > 0.1

    i = torch.arange(90, dtype=torch.float64)
    weight = torch.einsum("bihd,bjhd->bhij", q.relu(), k.relu()) * torch.cos(
        torch.pi / 180 * (i[:, None] - i)
    )
    weight = (weight.tril() if causal else weight) * mask[:, None, None]
    expected = torch.einsum("bhij,bjhe->bihe", weight / weight.sum(-1, keepdim=True).clamp_min(1e-6), v)
    torch.testing.assert_close(masked, expected, rtol=1e-10, atol=1e-12)

    anything = (
        torch.where(mask[..., None, None], k, torch.nan),
        torch.where(mask[..., None, None], v, torch.inf),
    )
    assert torch.equal(cosformer_attention(q, *anything, key_mask=mask, **case.options), masked)


def test_4_a_prefix_keeps_its_outputs_as_the_text_grows():
    q, k, v = make(tq=300).tensors.values()
    whole = cosformer_attention(q, k, v, causal=True, horizon=1000)
    for length in (1, 2, 64, 65, 299):
        prefix = cosformer_attention(*(x[:, :length] for x in (q, k, v)), causal=True, horizon=1000)
        torch.testing.assert_close(prefix, whole[:, :length], rtol=1e-10, atol=1e-12)
    followed = cosformer_attention(q, k, v, causal=True)[:, :64]
    assert distance(cosformer_attention(q[:, :64], k[:, :64], v[:, :64], causal=True), followed) > 1e-3


def test_4_decoding_carries_a_state():
    q, k, v = make(tq=70).tensors.values()
    whole = cosformer_attention(q, k, v, causal=True, horizon=1000)
    state, steps = None, []
    for t in range(70):
        step = (x[:, t : t + 1] for x in (q, k, v))
        out, state = cosformer_attention(*step, causal=True, horizon=1000, state=state, return_state=True)
        steps.append(out)
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("keyword", ["act_fun", "activation"])
def test_5_there_is_no_option_that_cannot_work(keyword):
    """The features are the paper's ReLU; asking for others is an error at once, not at the first call."""
    q = torch.randn(1, 4, 2, 8)
    with pytest.raises(TypeError, match=keyword):
        CosformerAttention(16, 2, **{keyword: "elu"})
    with pytest.raises(TypeError, match=keyword):
        cosformer_attention(q, q, q, **{keyword: "elu"})


@pytest.mark.parametrize(("kdim", "vdim"), [(24, None), (None, 40), (24, 40)])
def test_6_the_widths_of_key_and_value_are_independent(kdim, vdim):
    module = CosformerAttention(16, 2, kdim=kdim, vdim=vdim)
    key, value = torch.randn(3, 9, kdim or 16), torch.randn(3, 9, vdim or 16)
    assert module.k_proj.in_features == (kdim or 16)
    assert module.v_proj.in_features == (vdim or 16)
    assert module(torch.randn(3, 5, 16), key, value).shape == (3, 5, 16)


def test_7_value_is_the_key_unless_given():
    module = CosformerAttention(16, 2)
    query, key = torch.randn(3, 5, 16), torch.randn(3, 5, 16)
    assert torch.equal(module(query, key), module(query, key, key))
    assert not torch.allclose(module(query, key), module(query, key, query))
    assert torch.equal(module(query), module(query, query, query))


HALVES = {  # length, size of q and k, size of v, tolerance: a few roundings of fp16
    "ordinary": (200, 1, 1),
    "large": (200, 300, 2e4),  # q . k passes fp16's 65504 many times over
    "small": (200, 1e-4, 1),  # and here is below its smallest number
    "long": (70_000, 1, 1),  # positions that fp16 does not have
}


@BOTH
@pytest.mark.parametrize("kind", HALVES)
def test_8_half_precision_keeps_its_numbers(kind, causal):
    length, size, value_size = HALVES[kind]
    q, k = (size * torch.randn(1, length, 1, 16) for _ in range(2))
    v = (value_size * torch.randn(1, length, 1, 16)).clamp(-6e4, 6e4)
    q[:, length // 2] = -1  # no feature: denominator 0
    q, k, v = (x.half() for x in (q, k, v))
    out = cosformer_attention(q, k, v, causal=causal)
    assert out.dtype == torch.float16
    assert out.isfinite().all()
    assert (out[:, length // 2] == 0).all()
    exact = cosformer_attention(q.double(), k.double(), v.double(), causal=causal)
    assert distance(out, exact) <= 1e-3


@BOTH
def test_8_half_precision_keeps_its_gradients(causal):
    leaves = [(size * torch.randn(1, 200, 1, 16)).half().requires_grad_() for size in (300, 300, 1000)]
    grads = torch.autograd.grad(cosformer_attention(*leaves, causal=causal).float().sum(), leaves)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    exact = torch.autograd.grad(cosformer_attention(*wide, causal=causal).sum(), wide)
    for ours, expected in zip(grads, exact, strict=True):
        assert ours.isfinite().all()
        assert distance(ours, expected) <= 1e-2


def test_8_the_module_in_half_precision():
    module = CosformerAttention(32, 2, causal=True).half()
    x = torch.randn(2, 3000, 32).half()
    out = module(x)
    assert out.dtype == torch.float16
    assert distance(out, module.double()(x.double())) <= 5e-3
