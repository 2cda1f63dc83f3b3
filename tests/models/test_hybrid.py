"""A hybrid of constant memory: cosFormer with windows for every head, and a softmax layer with windows."""

import json

import pytest
import torch
from transformers import CompileConfig

from cosformer.attention.kv import KeyValueState
from cosformer.attention.window_state import WindowState
from cosformer.models import CosformerCache, CosformerForCausalLM
from cosformer.models.batching import Choice, generate_many
from tests.models.tiny import build, close, config, tokens

HYBRID = {
    "num_hidden_layers": 3, "attention": ["cosformer", "softmax", "cosformer"], "position": "rotary",
    "attention_parameters": [{"windows": w} for w in ([1, 2, 4, 8], [9, 9, 3, 9], [2, 2, 5, 12])],
    "max_position_embeddings": 16, "qk_norm": True, "output_norm": True, "output_gate": "silu",
}  # fmt: skip


@pytest.fixture
def net():
    return build(CosformerForCausalLM, **HYBRID)


def test_nothing_of_it_grows():
    made = config(**HYBRID)
    assert not made.bounded
    assert made.growing_layers == (False, False, False)
    assert made.traits.constant_state
    assert made.traits.cost == "linear"
    assert made.state_size(1) == made.state_size(10**6)
    partly = [{"windows": [1, 2, 4, 8]}, {"windows": [9, 9, 3, None]}, {"windows": [2, 2, 5, 12]}]
    grows = config(**HYBRID | {"attention_parameters": partly})
    assert grows.bounded
    assert grows.growing_layers == (False, True, False)


@torch.no_grad()
def test_a_text_goes_on_far_beyond_the_greatest_length(net):
    ids, sizes, parts = tokens(2, 120), set(), []
    cache = CosformerCache(net.config)
    for piece in ids.split([1, 1, 30, 1, 50, 37], 1):
        parts.append(net(piece, past_key_values=cache).logits)
        sizes.add(cache.nbytes)
    close(torch.cat(parts, 1), net(ids, use_cache=False).logits)
    assert len(sizes) == 1
    assert isinstance(cache.layers[1].state, WindowState)


@torch.no_grad()
@pytest.mark.parametrize("beams", [1, 3])
def test_what_it_says_is_the_same_without_a_cache(net, beams):
    """Prompts of other lengths, padded on the left; several times the greatest length."""
    ids, mask = tokens(3, 11), torch.ones(3, 11, dtype=torch.int64)
    mask[1, :6] = 0
    ask = {"attention_mask": mask, "max_new_tokens": 40, "do_sample": False, "num_beams": beams}
    cached, whole = (net.generate(ids, use_cache=use, **ask) for use in (True, False))
    assert torch.equal(cached, whole)
    alone = net.generate(ids[1:2, 6:], max_new_tokens=40, do_sample=False, num_beams=beams)
    assert torch.equal(cached[1, 6:], alone[0])


@torch.no_grad()
@pytest.mark.parametrize("implementation", [None, "static"])
def test_a_snapshot_is_restored(net, implementation):
    ids = tokens(2, 20)
    cache = CosformerCache(net.config, static=implementation is not None)
    net(ids, past_key_values=cache)
    kept, later = cache.snapshot(), tokens(2, 9)
    first = [net(x, past_key_values=cache).logits for x in later.split(1, 1)]
    cache.restore(kept)
    close(net(later, past_key_values=cache).logits, torch.cat(first, 1))
    with pytest.raises(ValueError, match="of constant size cannot forget its last 3 tokens"):
        cache.crop(-3)


@torch.no_grad()
def test_steps_are_compiled(net):
    ids = tokens(2, 5)
    ask = {"max_new_tokens": 30, "do_sample": False}
    torch.compiler.reset()
    settings = CompileConfig(backend="eager", fullgraph=True, mode=None)
    settings._compile_all_devices = True
    made = net.generate(ids, cache_implementation="static", compile_config=settings, **ask)
    assert net._decoding is not None
    assert torch.equal(made, net.generate(ids, **ask))


@torch.no_grad()
def test_rows_come_and_go(net):
    prompts = [tokens(n) for n in (3, 21, 8, 1, 14)]
    made = dict(generate_many(net, prompts, tokens=12, batch_size=2, choice=Choice(greedy=True)))
    for number, prompt in enumerate(prompts):
        alone = net.generate(prompt[None], max_new_tokens=12, do_sample=False)[0, len(prompt) :]
        assert made[number] == alone.tolist()


@torch.no_grad()
def test_a_cache_makes_the_round_trip_through_a_file(net, tmp_path):
    ids, later = tokens(2, 20), tokens(2, 7)
    cache = net(ids, use_cache=True).past_key_values
    cache.save(tmp_path / "cache.safetensors")
    again = CosformerCache.load(tmp_path / "cache.safetensors", net.config)
    assert again.nbytes == cache.nbytes
    assert torch.equal(net(later, past_key_values=again).logits, net(later, past_key_values=cache).logits)


@torch.no_grad()
def test_a_file_in_which_every_key_was_kept_is_refused(net, tmp_path):
    """As earlier versions wrote it for the same model."""
    cache = net(tokens(2, 20), use_cache=True).past_key_values
    state = cache.layers[1].state
    keys = torch.zeros(2, 20, *state.keys.shape[2:], dtype=state.keys.dtype)
    at = torch.arange(20).expand(2, 20)
    cache.layers[1].state = KeyValueState(keys, keys, None, state.positions, state.seen, at)
    cache.save(tmp_path / "cache.safetensors")
    with pytest.raises(ValueError, match="cannot be the cache of this model"):
        CosformerCache.load(tmp_path / "cache.safetensors", net.config)


def test_a_folder_saved_earlier_is_the_same_model(net, tmp_path):
    """Nothing in its configuration or weights says how windows are computed."""
    net.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["attention_parameters"][1] == {"windows": [9, 9, 3, 9]}
    again = CosformerForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    ids = tokens(2, 30)
    assert torch.equal(again(ids).logits, net(ids).logits)
