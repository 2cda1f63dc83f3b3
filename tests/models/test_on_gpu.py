"""What needs a GPU: compiled steps captured as a graph, and the short way on CUDA tensors."""

import gc

import pytest
import torch

from cosformer.models import CosformerForCausalLM, step
from cosformer.models.captured import tensors_of
from tests.models.tiny import PADDINGS, build, close, padded_batch, tokens

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU here")

MODELS = {
    "rotary": {"position": "rotary", "num_key_value_heads": 2},
    "windows, conv, gate": {
        "attention_parameters": {"windows": [1, 3, 3, None]}, "conv_size": 3, "output_gate": "silu",
    },
    "mixed": {"attention": ["cosformer", "linear"], "position": "learned"},
}  # fmt: skip
EACH_MODEL = pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS)


def model(changes):
    sizes = {"hidden_size": 64, "max_position_embeddings": 256}  # heads of 16
    return build(CosformerForCausalLM, torch.float32, **sizes | changes).cuda()


def generate(net, ids, **options):
    torch.manual_seed(0)
    return net.generate(
        ids.cuda(), **{"max_new_tokens": 40, "min_new_tokens": 40, "do_sample": False} | options
    )


@EACH_MODEL
def test_compiled_tokens_are_those_of_no_cache(changes):
    """On CUDA a static cache is enough: the steps are compiled and captured."""
    net = model(changes)
    torch.compiler.reset()
    for ids, mask in (padded_batch(PADDINGS[kind])[:2] for kind in ("left", "inside")):
        out = generate(net, ids, attention_mask=mask.cuda(), cache_implementation="static")
        assert torch.equal(out, generate(net, ids, attention_mask=mask.cuda()))
    for mode in ({}, {"do_sample": True}, {"num_beams": 3}):
        ids = tokens(2, 7)
        expected = generate(net, ids, use_cache=False, **mode)
        assert torch.equal(generate(net, ids, cache_implementation="static", **mode), expected)


@EACH_MODEL
def test_captured_tokens_are_those_of_no_cache(changes):
    """Without being asked: padded, in every mode, and with other weights than those that were captured."""
    net = model(changes)
    for ids, mask in (padded_batch(PADDINGS[kind])[:2] for kind in ("left", "inside")):
        out = generate(net, ids, attention_mask=mask.cuda())
        assert torch.equal(out, generate(net, ids, attention_mask=mask.cuda(), disable_compile=True))
    ids, net._decoding = tokens(2, 7), None
    for mode in ({}, {"do_sample": True}, {"num_beams": 3}):
        expected = generate(net, ids, use_cache=False, **mode)
        assert torch.equal(generate(net, ids, **mode), expected)
    assert net._decoding.settings is None
    first = net.model.layers[0]
    with torch.no_grad():
        first.attention.q_proj.weight.mul_(-1)
    assert torch.equal(generate(net, ids), generate(net, ids, use_cache=False))
    first.attention.v_proj.weight = torch.nn.Parameter(-first.attention.v_proj.weight)
    assert torch.equal(generate(net, ids), generate(net, ids, use_cache=False))
    hook = first.register_forward_hook(lambda *call: None)
    net._decoding = None
    generate(net, ids)
    assert net._decoding is None  # what a hook does is not known
    hook.remove()


def test_graphs_of_others_leave_ours_alone():
    """Whoever captures, clears workspaces or frees memory in between: torch.compile and a second model do."""
    first, second = model(MODELS["rotary"]), model(MODELS["windows, conv, gate"])
    ids = tokens(2, 7)
    expected = generate(first, ids)
    for _ in range(3):
        generate(second, ids)
        second._decoding = None
        layer = torch.nn.Linear(64, 64, device="cuda")
        called = torch.compile(layer, mode="reduce-overhead", dynamic=False)
        with torch.no_grad():
            for _ in range(3):
                called(torch.ones(8, 64, device="cuda"))
        del called, layer
        torch.compiler.reset()
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        assert torch.equal(generate(first, ids), expected)


def test_what_was_kept_does_not_change():
    net = model(MODELS["windows, conv, gate"])
    cache = generate(net, tokens(2, 7), return_dict_in_generate=True).past_key_values
    kept = [x.clone() for layer in cache.layers for x in tensors_of(layer.state)]
    generate(net, tokens(2, 9))  # takes the place of the first
    now = [x for layer in cache.layers for x in tensors_of(layer.state)]
    assert all(torch.equal(a, b) for a, b in zip(kept, now, strict=True))


@EACH_MODEL
@torch.no_grad()
def test_the_fast_step_is_as_the_general_one(changes, monkeypatch):
    net, ids, more = model(changes), tokens(2, 9).cuda(), tokens(2, 5).cuda()
    found = []
    for devices in ((), ("cuda",)):
        monkeypatch.setattr(step, "DEVICES", devices)
        cache = net(ids, use_cache=True).past_key_values
        kept = cache.snapshot()
        numbers = [layer.state.positions.clone() for layer in cache.layers]
        logits = [net(more[:, t : t + 1], past_key_values=cache).logits for t in range(5)]
        found.append(torch.cat(logits, 1))
        for (state, _, _), before in zip(kept.layers, numbers, strict=True):
            assert torch.equal(state.positions, before)
    close(*found, 1e-4)
