"""What needs a GPU: compiled steps captured as a graph, and the short way on CUDA tensors."""

import pytest
import torch

from cosformer.models import CosformerForCausalLM, generation, step
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


def test_compiled_without_being_asked(monkeypatch):
    monkeypatch.setattr(generation, "COMPILED_UNASKED", ("cuda",))
    monkeypatch.setattr(generation, "FEWEST_UNASKED", 40)
    net, ids = model(MODELS["rotary"]), tokens(2, 7)
    torch.compiler.reset()
    for mode in ({}, {"do_sample": True}, {"num_beams": 3}):
        made = generate(net, ids, return_dict_in_generate=True, **mode)
        assert made.past_key_values.decoding is not None
        assert torch.equal(made.sequences, generate(net, ids, use_cache=False, **mode))


@EACH_MODEL
@torch.no_grad()
def test_the_short_way_is_as_the_general_one(changes, monkeypatch):
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
