"""Layers that differ: each its own attention and parameters, and a cache with a state of each kind."""

import json
from dataclasses import asdict

import pytest
import torch

from cosformer import attention
from cosformer.attention.linear_core import LinearState
from cosformer.attention.traits import common
from cosformer.models import (
    CosformerCache,
    CosformerConfig,
    CosformerForCausalLM,
    CosformerForConditionalGeneration,
    CosformerForMaskedLM,
)
from cosformer.ops import CosformerState
from tests.models.tiny import build, close, config, tokens

MIXED = {"num_hidden_layers": 3, "attention": ["cosformer", "softmax", "linear"]}


def test_each_layer_has_its_own():
    parameters = [{"eps": 1e-3}, None, {"eps": 1e-2}]
    net = build(CosformerForCausalLM, **MIXED, attention_parameters=parameters)
    made = [layer.attention.attention for layer in net.model.layers]
    assert [m.name for m in made] == MIXED["attention"]
    assert (made[0].eps, made[2].eps) == (1e-3, 1e-2)
    assert net.config.attention_parameters == [{"eps": 1e-3}, {}, {"eps": 1e-2}]
    assert net.config.attention_names == ("cosformer", "softmax", "linear")
    assert parameters == [{"eps": 1e-3}, None, {"eps": 1e-2}], "what was given stays as it was"


def test_it_is_its_layers_one_after_the_other():
    """The layers of three models of one kind each, put together by hand."""
    net = build(CosformerForCausalLM, **MIXED)
    whole = net.model.layers
    singles = []
    for i, name in enumerate(MIXED["attention"]):
        one = build(CosformerForCausalLM, num_hidden_layers=3, attention=name)
        one.load_state_dict(net.state_dict())
        singles.append(one.model.layers[i])
    ids = tokens(2, 17)
    wanted = net(ids).logits
    net.model.layers = torch.nn.ModuleList(singles)
    close(net(ids, use_cache=False).logits, wanted)
    assert whole is not net.model.layers


def test_one_value_serves_every_layer():
    """Of two fields one may be a list and the other not."""
    made = config(num_hidden_layers=2, attention=("linear", "relu"), attention_parameters={"eps": 1e-3})
    assert [made.build_attention(i).eps for i in (0, 1)] == [1e-3, 1e-3]
    made = config(num_hidden_layers=2, attention_parameters=({"eps": 1e-3}, None))
    assert [made.build_attention(i).eps for i in (0, 1)] == [1e-3, 1e-6]
    assert isinstance(made.attention_parameters, list), "as it comes back from JSON"


def test_traits_are_what_all_layers_can_do():
    mixed = config(num_hidden_layers=3, attention=["cosformer", "softmax", "performer"]).traits
    each = [attention.traits(n) for n in ("cosformer", "softmax", "performer")]
    assert mixed == common(each)
    assert mixed.recurrent
    assert not mixed.constant_state
    assert mixed.random
    assert mixed.cost == "quadratic"
    for name, value in asdict(mixed).items():
        if value is True and name != "random":
            assert all(getattr(t, name) for t in each), name
    assert config(num_hidden_layers=2, attention=["softmax"] * 2).traits == attention.traits("softmax")


@pytest.mark.parametrize("layers", [["softmax", "softmax"], "softmax"], ids=str)
def test_a_mixed_cache_is_as_long_as_its_longest_part(layers):
    net = build(CosformerForCausalLM, torch.float32, **MIXED)
    cache = net(tokens(2, 10), use_cache=True).past_key_values
    kinds = [type(layer.state) for layer in cache.layers]
    assert kinds[0] is CosformerState
    assert kinds[2] is LinearState
    before = [layer.nbytes for layer in cache.layers]
    net(tokens(2, 30), past_key_values=cache)
    after = [layer.nbytes for layer in cache.layers]
    assert after[0] == before[0]
    assert after[2] == before[2]
    assert after[1] > 3 * before[1]
    assert cache.nbytes == sum(after)
    assert cache.get_seq_length() == 40
    assert not cache.is_croppable
    uniform = build(CosformerForCausalLM, attention=layers)
    assert uniform(tokens(2, 4), use_cache=True).past_key_values.is_croppable


def test_a_refused_crop_changes_no_layer():
    net = build(CosformerForCausalLM, attention=["softmax", "cosformer"])
    ids = tokens(2, 9)
    cache = net(ids, use_cache=True).past_key_values
    before = cache.snapshot()
    with pytest.raises(ValueError, match="a CosformerState of constant size cannot forget its last 2"):
        cache.crop(-2)
    assert cache.snapshot() == before
    cache.crop(-9)
    close(net(ids, past_key_values=cache).logits, net(ids).logits)
    with pytest.raises(ValueError, match="the state of attention 'cosformer', of constant size, cannot"):
        net.generate(ids[:1], prompt_lookup_num_tokens=2, max_new_tokens=4)


def test_guesses_are_taken_back_where_every_layer_can():
    net = build(CosformerForCausalLM, attention=["softmax", "sparse"])
    ids = tokens(1, 9)
    plain = net.generate(ids, max_new_tokens=8, do_sample=False)
    assert torch.equal(
        net.generate(ids, prompt_lookup_num_tokens=2, max_new_tokens=8, do_sample=False), plain
    )


def test_a_cache_file_says_what_each_layer_has(tmp_path):
    path = tmp_path / "cache.safetensors"
    net = build(CosformerForCausalLM, **MIXED)
    net(tokens(2, 9), use_cache=True).past_key_values.save(path)
    other = config(num_hidden_layers=3, attention=["cosformer", "linear", "softmax"])
    message = (
        "holds 3 layers of attention 'cosformer', 'softmax', 'linear', but the model has 3 of 'cosformer', "
    )
    with pytest.raises(ValueError, match=message):
        CosformerCache.load(path, other)
    with pytest.raises(
        ValueError, match="must have 2 layers of attention 'cosformer', but it has 3 of 'cosf"
    ):
        build(CosformerForCausalLM)(tokens(2, 2), past_key_values=CosformerCache.load(path, net.config))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"attention": ["cosformer"]},
         "attention must have an entry for each of the 2 layers where it is a list, but it has 1."),
        ({"attention_parameters": [{}, {}, {}]},
         "attention_parameters must have an entry for each of the 2 layers"),
        ({"attention": ["cosformer", "sofmax"]}, "attention must be one of "),
        ({"attention": ["cosformer", 3]}, "attention"),
        ({"attention": ["softmax", "cosformer"], "attention_parameters": {"eps": 1e-3}},
         "attention 'softmax' has no parameter 'eps'; it takes windows, num_kv_heads."),
        ({"attention_parameters": [{"horizon": 9}, None]}, "attention_parameters must not hold horizon"),
        ({"attention": ["cosformer"] * 2, "num_decoder_layers": 3},
         "a list only where both sides of an encoder-decoder have as many layers, but they have 2 and 3"),
    ],
)  # fmt: skip
def test_lists_that_cannot_be(values, message):
    with pytest.raises((TypeError, ValueError)) as caught:
        config(**values)
    assert message in str(caught.value)


def test_heads_that_a_layer_cannot_serve():
    with pytest.raises(ValueError, match="needs an attention that is causal, and 'linformer' is not"):
        CosformerForCausalLM(config(attention=["cosformer", "linformer"]))
    with pytest.raises(ValueError, match="attention 'synthesizer' carries no state"):
        CosformerCache(config(attention=["cosformer", "synthesizer"]))
    gated = config(attention=["linformer", "rfa"], attention_parameters=[None, {"gate": True}])
    with pytest.raises(
        ValueError, match="mixes 'linformer', which cannot be causal, with 'rfa', which can be"
    ):
        assert gated.traits
    net = build(CosformerForCausalLM, attention=["cosformer", "synthesizer"])
    ids = tokens(1, 5)
    assert net.generate(ids, max_new_tokens=3).shape == (1, 8), "computed again for each token"


def test_both_sides_of_an_encoder_decoder():
    net = build(CosformerForConditionalGeneration, attention=["cosformer", "softmax"])
    for side in (net.get_encoder(), net.get_decoder()):
        assert [layer.attention.attention.name for layer in side.layers] == ["cosformer", "softmax"]
    assert [layer.cross_attention.attention.name for layer in net.get_decoder().layers] == [
        "cosformer",
        "softmax",
    ]
    results = [net.generate(tokens(2, 7) * 0 + 5, max_new_tokens=6, use_cache=c) for c in (True, False)]
    assert torch.equal(*results)


def test_the_configuration_comes_back(tmp_path):
    made = config(**MIXED, attention_parameters=[{"eps": 1e-3}, None, None])
    made.save_pretrained(tmp_path)
    again = CosformerConfig.from_pretrained(tmp_path)
    assert again.attention == made.attention
    assert again.attention_parameters == made.attention_parameters
    assert json.loads((tmp_path / "config.json").read_text())["attention"] == MIXED["attention"]


def test_masked_models_take_any_that_see_both_sides():
    net = build(CosformerForMaskedLM, attention=["bigbird", "linformer"])
    assert net(tokens(2, 9)).logits.isfinite().all()
