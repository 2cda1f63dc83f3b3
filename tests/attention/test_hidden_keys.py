"""Keys hidden by columns in place of a mask: the same values and gradients."""

import pytest
import torch

from cosformer import attention
from cosformer.attention import hidden_keys, sliding, softmax
from tests.ops.cases import errors, is_as_good_as

MASKS = ("right", "left", "holes", "one row hidden", "all seen")


def mask_of(kind, length):
    mask = torch.ones(3, length, dtype=torch.bool)
    if kind == "right":
        mask[0, length - 20 :] = mask[1, 1:] = False
    elif kind == "left":
        mask[0, :20] = mask[1, : length - 1] = False
    elif kind == "holes":
        mask = torch.rand(3, length) < 0.5
    elif kind == "one row hidden":
        mask[1] = False
    return mask


def results(q, k, v, mask, grad, windows=None, causal=False, offset=None, repeated=1):
    """`repeated`: how often each key head is written out: kernels with a mask know no grouped heads."""
    x = [y.detach().requires_grad_() for y in (q, k, v)]
    run = attention.build("softmax", windows=None if windows is None else windows * repeated)
    own = (x[0], *(y.repeat_interleave(repeated, 2) for y in x[1:]))
    out, _ = run.attend(
        *own,
        causal=causal,
        key_mask=mask,
        query_offset=offset,
        cu_seqlens=None,
        state=None,
        return_state=False,
    )
    gradients = torch.autograd.grad(out, x, grad.to(out.dtype))
    return dict(zip(("o", "dq", "dk", "dv"), (out, *gradients), strict=True))


def inputs(length, heads, kv_heads, dim, dtype, device="cpu"):
    sizes = ((heads, dim), (kv_heads, dim), (kv_heads, dim))
    return [torch.randn(3, length, *size, dtype=dtype, device=device) for size in sizes]


@pytest.fixture
def without(monkeypatch):
    """The same call with a mask in place of columns."""

    def run(*call, **more):
        with monkeypatch.context() as patch:
            for module in (softmax, sliding):
                patch.setattr(module, "can_hide", lambda *x: False)
            return results(*call, **more)

    return run


@pytest.fixture
def counted(monkeypatch):
    calls = []

    def count(*call):
        calls.append(call)
        return hidden_keys.with_columns(*call)

    for module in (softmax, sliding):
        monkeypatch.setattr(module, "with_columns", count)
    return calls


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("dim", [8, 24])
def test_columns_say_what_a_mask_says(dim, causal, kind, monkeypatch, without, counted):
    monkeypatch.setattr(softmax, "can_hide", lambda *x: True)
    x, mask = inputs(70, 4, 2, dim, torch.float64), mask_of(kind, 70)
    for y in x[1:]:
        y[~mask] = torch.nan
    grad = torch.randn(3, 70, 4, dim, dtype=torch.float64)
    ours = results(*x, mask, grad, causal=causal)
    assert counted
    expected = without(*x, mask, grad, causal=causal)
    for name, truth in expected.items():
        torch.testing.assert_close(ours[name], truth, rtol=1e-8, atol=1e-8, msg=name)


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("window", [2, 33, 65])
def test_columns_under_windows(window, causal, kind, monkeypatch, without, counted):
    """With the kernel's own equation in its place."""

    def flash(q, k, v, window, causal, scale):
        i = torch.arange(q.shape[1])
        near = (i[:, None] - i).abs() < window
        group = q.shape[2] // k.shape[2]
        return torch.nn.functional.scaled_dot_product_attention(
            q.transpose(1, 2), *(x.repeat_interleave(group, 2).transpose(1, 2) for x in (k, v)),
            attn_mask=near.tril() if causal else near, scale=scale,
        ).transpose(1, 2)  # fmt: skip

    monkeypatch.setattr(sliding, "can_hide", lambda *x: True)
    monkeypatch.setattr(sliding, "flash", flash)
    x, mask = inputs(70, 4, 2, 8, torch.float64), mask_of(kind, 70)
    for y in x[1:]:
        y[~mask] = torch.nan
    grad = torch.randn(3, 70, 4, 8, dtype=torch.float64)
    ours = results(*x, mask, grad, (window,) * 2, causal)
    assert counted
    for name, truth in without(*x, mask, grad, (window,) * 2, causal).items():
        torch.testing.assert_close(ours[name], truth, rtol=1e-8, atol=1e-8, msg=name)


@pytest.mark.parametrize("windows", [None, (20, 20)], ids=["all", "windows"])
def test_queries_that_stand_elsewhere_keep_their_mask(windows, monkeypatch, counted):
    """A kernel without a mask has query i at key i, or the last query at the last key."""
    for module in (softmax, sliding):
        monkeypatch.setattr(module, "can_hide", lambda *x: True)
    x, mask = inputs(70, 2, 2, 8, torch.float64), mask_of("holes", 70)
    results(*x, mask, torch.ones(3, 70, 2, 8), windows, causal=True, offset=3)
    assert not counted


@pytest.mark.parametrize("kind", MASKS)
def test_columns_in_cross_attention(kind, monkeypatch, without, counted):
    monkeypatch.setattr(softmax, "can_hide", lambda *x: True)
    (q, _, _), (_, k, v) = (inputs(n, 4, 2, 8, torch.float64) for n in (70, 50))
    mask, grad = mask_of(kind, 50), torch.randn(3, 70, 4, 8, dtype=torch.float64)
    for y in (k, v):
        y[~mask] = torch.nan
    ours = results(q, k, v, mask, grad)
    assert counted
    for name, truth in without(q, k, v, mask, grad).items():
        torch.testing.assert_close(ours[name], truth, rtol=1e-8, atol=1e-8, msg=name)


@pytest.mark.parametrize(("queries", "masked"), [(50, 70), (70, 60)], ids=["fewer queries", "a shorter mask"])
def test_windows_of_other_lengths_keep_their_mask(queries, masked, monkeypatch, counted):
    monkeypatch.setattr(sliding, "can_hide", lambda *x: True)
    (q, _, _), (_, k, v) = (inputs(n, 2, 2, 8, torch.float64) for n in (queries, 70))
    mask = torch.rand(3, masked) < 0.5
    sliding._one_window(q, k, v, 20, True, 70 - queries, mask)
    assert not counted


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernels are for CUDA GPUs")
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("windows", [None, 100], ids=["all", "window"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(700, 4, 4, 32), (333, 4, 2, 64), (200, 2, 1, 8)], ids=str)
def test_on_a_gpu(shape, dtype, windows, causal, kind, without, counted):
    x, mask = inputs(*shape, dtype, "cuda"), mask_of(kind, shape[0]).cuda()
    for y in x[1:]:
        y[~mask] = torch.nan
    grad = torch.randn_like(x[0])
    many = None if windows is None else (windows,) * shape[2]
    ours = results(*x, mask, grad, many, causal)
    assert counted
    plain = without(*x, mask, grad, many, causal, repeated=shape[1] // shape[2])
    for name, truth in without(*(y.double() for y in x), mask, grad, many, causal).items():
        found = errors(ours[name], truth), errors(plain[name], truth)
        assert is_as_good_as(ours[name], plain[name], truth, 2**-9), (name, found)
