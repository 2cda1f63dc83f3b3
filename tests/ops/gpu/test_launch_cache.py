"""Plain inference in a layout seen before is replayed at once, and nothing else is."""

from types import SimpleNamespace

import pytest
import torch

from cosformer import cosformer_attention
from cosformer.ops import interface
from cosformer.ops.backends import choose as really_choose
from cosformer.ops.gpu import launch_cache

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="calls are replayed on CUDA GPUs")


def tensors(device, length=70, heads=4):
    return [torch.randn(2, length, heads, 64, device=device, dtype=torch.bfloat16) for _ in range(3)]


@pytest.fixture
def asked(monkeypatch):
    """The calls for which a backend was chosen."""
    found = []

    def choose(name, args, seen):
        found.append(args)
        return really_choose(name, args, seen)

    monkeypatch.setattr(launch_cache, "PLAN_CACHE", {})
    monkeypatch.setattr(interface, "choose", choose)
    return found


def test_not_without_a_gpu(asked):
    q, k, v = (x.float() for x in tensors("cpu"))
    for _ in range(2):
        cosformer_attention(q, k, v)
    assert len(asked) == 2
    assert launch_cache.PLAN_CACHE == {}


def test_a_backend_that_cannot_replay_is_asked_once(monkeypatch):
    monkeypatch.setattr(launch_cache, "PLAN_CACHE", {})
    asked = []
    for _ in range(2):
        launch_cache.store_replay(("a key",), lambda: asked.append(1))
    assert asked == [1]
    assert launch_cache.lookup(("a key",)) is None


def test_what_is_cached_is_replayed(asked, monkeypatch):
    monkeypatch.setattr(launch_cache, "inference_key", lambda *call: ("a key",))
    backend = SimpleNamespace(
        run=lambda args: (args.q + args.v, None, None),
        replay=lambda args: lambda q, k, v: q - v,
    )
    monkeypatch.setattr(interface, "choose", lambda name, args, seen: backend)
    q, k, v = (x.float() for x in tensors("cpu"))
    assert torch.equal(cosformer_attention(q, k, v), q + v)
    assert torch.equal(cosformer_attention(q, k, v), q - v)
    # Calls with more than q, k, v and settings have no key.
    mask = torch.ones(2, 70, dtype=torch.bool)
    for more in ({"key_mask": mask}, {"query_offset": 0}, {"horizon": 70, "return_state": True}):
        assert torch.equal(cosformer_attention(q, k, v, **more), q + v)


@needs_gpu
@pytest.mark.parametrize("backend", ["auto", "triton"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("windows", [None, (3, 5, None, None)], ids=str)
def test_the_second_call(asked, windows, causal, backend):
    q, k, v = tensors("cuda")
    options = {"causal": causal, "backend": backend, "windows": windows}
    first = cosformer_attention(q, k, v, **options)
    again = cosformer_attention(*(x.clone() for x in (q, k, v)), **options)
    assert len(asked) == 1
    assert torch.equal(first, again)
    other = tensors("cuda")
    found = cosformer_attention(*other, **options)
    assert len(asked) == 1
    launch_cache.PLAN_CACHE.clear()
    assert torch.equal(found, cosformer_attention(*other, **options))


@needs_gpu
def test_calls_that_are_validated(asked):
    q, k, v = tensors("cuda")
    expected = cosformer_attention(q, k, v, causal=True)
    count = len(asked)

    def validated(call):
        nonlocal count
        out = call()
        assert len(asked) == count + 1
        count += 1
        return out

    with torch.autocast("cuda", torch.float16):
        assert validated(lambda: cosformer_attention(q, k, v, causal=True)).dtype == torch.float16
    out = validated(lambda: cosformer_attention(q, k, v.clone().requires_grad_(), causal=True))
    assert out.requires_grad
    parameter = torch.nn.Parameter(v.clone(), requires_grad=False)
    assert torch.equal(validated(lambda: cosformer_attention(q, k, parameter, causal=True)), expected)
    odd = torch.empty(v.numel() + 1, device="cuda", dtype=v.dtype)[1:].view(v.shape).copy_(v)
    assert torch.equal(validated(lambda: cosformer_attention(q, k, odd, causal=True)), expected)
    turned = v.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(validated(lambda: cosformer_attention(q, k, turned, causal=True)), expected)
    validated(lambda: cosformer_attention(q, q, q, causal=True))
    validated(lambda: cosformer_attention(q, k, v, causal=True, horizon=71))
    for wrong in ({"causal": 1}, {"eps": torch.tensor(1e-6)}, {"horizon": True}, {"backend": ["auto"]},
                  {"windows": (True, 5, None, None)}, {"windows": (2.0, 5, 3, 4)}):  # fmt: skip
        with pytest.raises((TypeError, ValueError)):
            cosformer_attention(q, k, v, **({"causal": True} | wrong))
    cosformer_attention(q, k, v, causal=True)
    assert len(asked) == count
