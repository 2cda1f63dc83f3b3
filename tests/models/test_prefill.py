"""Long contexts are read in pieces: the same logits and states, and no tensor that grows with the context."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cosformer.models import CosformerCache, CosformerForCausalLM, HorizonError, prefill
from tests.models.tiny import PADDINGS, build, close, pad, tokens

MODELS = {
    "cosformer": {},
    "linear": {"attention": "linear", "position": "rotary"},
    "windows, conv": {"attention_parameters": {"windows": [1, 3, None, 7]}, "conv_size": 4},
    "mixed": {"attention": ["cosformer", "performer"], "position": "learned", "pre_norm": False},
}
EACH_MODEL = pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS)


@pytest.fixture
def pieces(monkeypatch):
    """Pieces of 3 columns, and the lengths of all calls of the first layer."""
    monkeypatch.setattr(prefill, "FEWEST", 3)
    monkeypatch.setattr(prefill, "TOKENS", 6)
    lengths = []

    def watch(net):
        net.model.layers[0].register_forward_pre_hook(lambda _, args: lengths.append(args[0].shape[1]))
        return lengths

    return watch


@EACH_MODEL
@pytest.mark.parametrize("pattern", PADDINGS.values(), ids=PADDINGS)
@torch.no_grad()
def test_the_last_column_is_as_of_the_whole(changes, pattern, pieces):
    """Twice, behind nothing and behind what the first call left; padding anywhere."""
    net = build(CosformerForCausalLM, **changes)
    rows = [[tokens(sum(pattern)), tokens(12)] for _ in range(2)]
    whole = CosformerCache(net.config)
    cut = CosformerCache(net.config)
    mask = torch.zeros(2, 0)
    lengths = pieces(net)
    for first, second in rows:
        spread, own = pad(first, pattern)
        ids = torch.stack([spread, second])
        mask = torch.cat([mask, torch.stack([own, torch.ones(12)])], 1)
        expected = net(ids, attention_mask=mask, past_key_values=whole).logits[:, -1:]
        lengths.clear()
        got = net(ids, attention_mask=mask, past_key_values=cut, logits_to_keep=1).logits
        assert lengths == [3, 3, 3, 3]
        close(got, expected)
    more = tokens(2, 2)
    close(*(net(more, past_key_values=cache).logits for cache in (whole, cut)))


@torch.no_grad()
def test_generate_reads_in_pieces(pieces):
    net = build(CosformerForCausalLM, position="rotary")
    ids = tokens(2, 11)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    expected = net.generate(ids, attention_mask=mask, use_cache=False, **options)
    embeds = net.get_input_embeddings()(ids)
    lengths = pieces(net)
    assert torch.equal(net.generate(ids, attention_mask=mask, **options), expected)
    assert lengths == [3, 3, 3, 2, 1, 1, 1, 1]
    assert torch.equal(net.generate(inputs_embeds=embeds, attention_mask=mask, **options), expected[:, 11:])
    beams = [net.generate(ids, num_beams=2, use_cache=cached, **options) for cached in (True, False)]
    assert torch.equal(*beams)


@torch.no_grad()
def test_a_call_that_fails_leaves_the_cache_as_it_was(pieces, monkeypatch):
    net = build(CosformerForCausalLM, max_position_embeddings=20)
    ids = tokens(1, 11)
    cache = CosformerCache(net.config)
    net(ids[:, :4], past_key_values=cache)
    before = cache.snapshot()
    with pytest.raises(HorizonError, match="position 20 is past the end"):
        net(tokens(1, 17), past_key_values=cache, logits_to_keep=1)
    assert cache.snapshot() == before
    lengths = pieces(net)

    def broken(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(net.model.norm, "forward", lambda x: x if len(lengths) < 2 else broken())
        with pytest.raises(KeyboardInterrupt):
            net(tokens(1, 11), past_key_values=cache, logits_to_keep=1)
    assert len(lengths) == 2
    assert cache.snapshot() == before
    with pytest.raises(ValueError, match="leaves a row without a single real token"):
        net(ids, attention_mask=torch.arange(15)[None] < 4, past_key_values=cache, logits_to_keep=1)
    assert cache.snapshot() == before


def test_other_calls_are_read_at_once(pieces):
    """Where more is asked of a call than its last column, or every key is kept."""
    net, growing = build(CosformerForCausalLM), build(CosformerForCausalLM, attention="softmax")
    ids = tokens(1, 11)
    for model, options in (
        (net, {"logits_to_keep": 2}),
        (net, {"logits_to_keep": torch.tensor([10, 3])}),
        (net, {"logits_to_keep": 1, "output_hidden_states": True}),
        (net, {"logits_to_keep": 1, "labels": ids[:, :1]}),
        (growing, {"logits_to_keep": 1}),
    ):
        lengths = pieces(model)
        lengths.clear()
        with torch.no_grad():
            model(ids, past_key_values=CosformerCache(model.config), **options)
        assert set(lengths) == {11}
    with torch.enable_grad():
        lengths.clear()
        net(ids, past_key_values=CosformerCache(net.config), logits_to_keep=1).logits.sum().backward()
        assert set(lengths) == {11}


class Largest(TorchDispatchMode):
    """Numbers of the largest floating tensor that an operation gave."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for x in result if isinstance(result, tuple | list) else [result]:
            if isinstance(x, torch.Tensor) and x.is_floating_point():
                self.numel = max(self.numel, x.numel())
        return result


@torch.no_grad()
def test_memory_does_not_grow_with_the_context(monkeypatch):
    monkeypatch.setattr(prefill, "TOKENS", 128)
    net = build(CosformerForCausalLM, torch.float32, max_position_embeddings=4096, position="rotary")
    found = []
    for length in (256, 1024, 4000):
        with Largest() as largest:
            net.generate(tokens(1, length), max_new_tokens=2, do_sample=False)
        found.append(largest.numel)
    assert len(set(found)) == 1
