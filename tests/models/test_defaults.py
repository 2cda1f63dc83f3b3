"""A saved configuration means what it meant when it was saved, whatever the defaults are by now."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from cosformer.models import (
    CosformerCache,
    CosformerConfig,
    CosformerForCausalLM,
    CosformerForConditionalGeneration,
    CosformerForMaskedLM,
    CosformerForQuestionAnswering,
    CosformerForSequenceClassification,
    CosformerForTokenClassification,
    CosformerModel,
    defaults,
)
from cosformer.models import config as models_config
from cosformer.models.defaults import recommended
from cosformer.training import Run
from cosformer.training.model import configuration
from tests.models.tiny import build, tokens

# As written by hand, and as a folder from before `defaults_version` has it: no options, no lists.
OLD = {
    "architectures": ["CosformerForCausalLM"],
    "model_type": "cosformer",
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "transformers_version": "5.17.0",
}


def write(folder, settings):
    (folder / "config.json").write_text(json.dumps(settings))


def test_an_old_folder_loads_as_the_model_it_was(tmp_path):
    net = build(CosformerForCausalLM, torch.float32, max_position_embeddings=2048, intermediate_size=None)
    net.save_pretrained(tmp_path)
    write(tmp_path, OLD)
    for door in (CosformerForCausalLM, AutoModelForCausalLM):
        again, info = door.from_pretrained(tmp_path, output_loading_info=True)
        assert not any(info.values()), info
        ids = tokens(2, 11)
        assert torch.equal(again.eval()(ids).logits, net(ids).logits)
        assert again.config.attention == "cosformer"
        assert again.config.conv_size is None
        assert again.config.position == "none"
        assert again.config.eos_token_id == 258


def test_every_way_to_read_a_file_gives_the_same(tmp_path):
    write(tmp_path, OLD)
    read = [
        CosformerConfig.from_pretrained(tmp_path),
        CosformerConfig.from_json_file(tmp_path / "config.json"),
    ]
    read.append(CosformerConfig.from_dict(OLD))
    assert all(c.to_dict() == read[0].to_dict() for c in read)
    assert (read[0].position, read[0].qk_norm) == ("none", False)


def test_what_a_file_does_not_say_is_of_its_version(tmp_path, monkeypatch):
    """Defaults that have changed since: only files that were written with them get them."""
    changed = defaults.VERSIONS[1] | {"position": "learned", "conv_size": 4, "norm": "rms"}
    monkeypatch.setattr(defaults, "VERSIONS", {1: defaults.VERSIONS[1], 2: changed})
    monkeypatch.setattr(defaults, "CURRENT", 2)
    write(tmp_path, OLD)
    old = AutoConfig.from_pretrained(tmp_path)
    assert (old.position, old.conv_size, old.norm) == ("none", None, "layer")
    assert old.defaults_version == 2, "every field is said by now, so it may be saved as of today"
    write(tmp_path, OLD | {"defaults_version": 2})
    new = AutoConfig.from_pretrained(tmp_path)
    assert (new.position, new.conv_size, new.norm) == ("learned", 4, "rms")
    write(tmp_path, OLD | {"norm": "rms"})
    assert AutoConfig.from_pretrained(tmp_path).norm == "rms", "what it says is what it says"


def test_none_in_a_file_of_version_1_is_the_mechanism_as_published(tmp_path):
    """None has come to mean windows since."""
    write(tmp_path, OLD | {"attention_parameters": None})
    assert CosformerConfig.from_pretrained(tmp_path).attention_parameters == {}


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 8, 12, 16])
def test_the_default_is_a_window_for_every_head_and_no_bound(heads):
    config = CosformerConfig(hidden_size=48, num_attention_heads=heads)
    assert config.attention == ["cosformer", "cosformer", "softmax", "cosformer"]
    assert config.attention_parameters[2] == {"windows": [1024] * heads}
    windows = config.attention_parameters[0]["windows"]
    assert len(windows) == heads
    assert windows == sorted(windows)
    assert windows[-1] == 1024
    assert heads == 1 or windows[0] == 2
    assert not config.bounded
    assert config.traits.constant_state
    assert config.output_gate == "silu"
    assert config.output_norm
    assert config.qk_norm


def test_the_default_windows_are_those_of_the_study():
    assert defaults.windows(8) == [2, 4, 8, 16, 64, 128, 512, 1024]
    grouped = CosformerConfig(
        hidden_size=64, num_attention_heads=8, num_key_value_heads=2, num_hidden_layers=3
    )
    assert (grouped.attention, grouped.attention_parameters) == ("cosformer", {"windows": [2, 1024]})
    mixed = CosformerConfig(num_hidden_layers=2, attention=["cosformer", "softmax"])
    assert mixed.attention_parameters == [{"windows": [2, 8, 128, 1024]}, {}]
    assert CosformerConfig(attention="linear").attention_parameters == {}


@pytest.mark.parametrize(
    ("layers", "places"), [(1, []), (3, []), (4, [2]), (6, [3]), (8, [4]), (12, [3, 9]), (24, [3, 9, 15, 21])]
)
def test_one_layer_in_six_is_a_softmax_with_a_window(layers, places):
    config = CosformerConfig(num_hidden_layers=layers, hidden_size=8, num_attention_heads=1)
    assert [n for n, name in enumerate(config.attention_names) if name == "softmax"] == places
    assert not config.bounded
    assert config.state_size(10) == config.state_size(10_000)


def test_attention_is_cosformer_where_only_its_parameters_are_given():
    config = CosformerConfig(attention_parameters={"windows": [2, 4, 8, None]})
    assert config.attention == "cosformer"
    pure = CosformerConfig(attention="cosformer")
    assert (pure.attention, pure.attention_parameters) == ("cosformer", {"windows": [2, 8, 128, 1024]})
    two_sided = CosformerConfig(num_hidden_layers=4, num_decoder_layers=2)
    assert two_sided.attention == "cosformer", "a list is for both sides"


@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("layers", [2, 4, 6])
def test_the_mixture_is_saved(tmp_path, layers, heads):
    config = CosformerConfig(num_hidden_layers=layers, num_attention_heads=heads)
    config.save_pretrained(tmp_path)
    again = CosformerConfig.from_pretrained(tmp_path)
    for name in ("attention", "attention_parameters", "num_hidden_layers"):
        assert getattr(again, name) == getattr(config, name)


def test_a_folder_of_version_2_is_cosformer_in_every_layer(tmp_path):
    write(tmp_path, {**OLD, "num_hidden_layers": 6, "defaults_version": 2})
    config = CosformerConfig.from_pretrained(tmp_path)
    assert (config.attention, config.attention_parameters) == ("cosformer", {"windows": [2, 8, 128, 1024]})


@pytest.mark.parametrize("given", [{}, {"attention_parameters": {"windows": [2, 8, 128, 1024]}}])
@pytest.mark.parametrize("attention", ["cosformer", "softmax"])
def test_windows_that_are_the_default_of_another_attention_are_saved(tmp_path, attention, given):
    config = CosformerConfig(attention=attention, **given)
    config.save_pretrained(tmp_path)
    assert CosformerConfig.from_pretrained(tmp_path).attention_parameters == config.attention_parameters


def test_the_default_model_reads_on_beyond_its_greatest_length():
    """Cut anywhere it is the same, and its cache has one size."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 16}
    net = CosformerForCausalLM(CosformerConfig(**sizes, initializer_range=0.25)).double().eval()
    ids = tokens(1, 60)
    with torch.no_grad():
        whole, cache, parts = net(ids).logits, None, []
        for piece in ids.split(7, 1):
            out = net(piece, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            parts.append(out.logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-9, atol=1e-9)


def test_the_paper_is_a_line_away():
    config = CosformerConfig.paper(hidden_size=64, num_attention_heads=4)
    assert (config.attention, config.attention_parameters, config.hidden_size) == ("cosformer", {}, 64)
    assert [config.qk_norm, config.output_norm, config.output_gate] == [False, False, None]
    assert config.bounded
    assert CosformerConfig.paper(output_gate="sigmoid").output_gate == "sigmoid"
    assert CosformerForMaskedLM(config).config.position == "none"
    assert CosformerConfig.paper(position="learned").position == "learned"


def test_a_run_means_the_papers_model_where_it_says_nothing():
    class Sizes:
        vocab_size, length, pad_token_id, num_labels = 64, 128, 0, None

    model = {"hidden_size": 64, "num_attention_heads": 8}
    run = Run(task="mqar", steps=1, batch_size=1, learning_rate=1e-3, model=model)
    assert configuration(run, Sizes()).attention_parameters == {}
    ours = configuration(run.replace(model=model | recommended(64, 8)), Sizes())
    default = CosformerConfig(**model, attention="cosformer").for_head("a language model", causal=True)
    for name in ("attention_parameters", "output_gate", "output_norm", "qk_norm", "position"):
        assert getattr(ours, name) == getattr(default, name), name


def test_the_version_is_always_written(tmp_path):
    CosformerConfig().save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["defaults_version"] == defaults.CURRENT


def test_the_table_is_the_class():
    """A default that is changed in one of the two places alone would change what saved files mean."""
    fields = {name: f.default for name, f in CosformerConfig.__dataclass_fields__.items()}
    ours = {name: fields[name] for name in CosformerConfig.__annotations__ if name in fields}
    del ours["defaults_version"]
    of_transformers = ("model_type", "keys_to_ignore_at_inference", "auto_map")
    known = {n: v for n, v in ours.items() if n not in of_transformers}
    assert known == defaults.VERSIONS[defaults.CURRENT]


def test_a_later_version_is_refused(tmp_path):
    write(tmp_path, OLD | {"defaults_version": 99})
    with pytest.raises(ValueError, match="must be one of 1, 2, 3, 4, 5, but the configuration has 99"):
        AutoConfig.from_pretrained(tmp_path)


HEADS = (
    CosformerModel, CosformerForMaskedLM, CosformerForTokenClassification, CosformerForQuestionAnswering,
    CosformerForSequenceClassification,
)  # fmt: skip


@pytest.mark.parametrize(("size", "position"), [(8, "rotary"), (9, "sinusoidal")])
@pytest.mark.parametrize("head", HEADS)
def test_a_text_is_told_from_its_mirror_image(head, size, position):
    """Windows weigh what is ahead as what is behind: it is the positions that tell them apart."""
    torch.manual_seed(0)
    fields = {"hidden_size": 2 * size, "num_attention_heads": 2, "initializer_range": 0.5}
    ids, apart = tokens(1, 40), {}
    for chosen in (None, "none"):
        net = head(CosformerConfig(**fields, position=chosen)).double().eval()
        with torch.no_grad():
            one, other = net(ids)[0], net(ids.flip(1))[0]
        if head is not CosformerForSequenceClassification:
            other = other.flip(1)
        apart[net.config.position] = (one - other).abs().max() / one.abs().max()
    assert apart["none"] < 1e-9
    assert apart[position] > 0.05


def test_positions_by_default():
    """None in a causal model, rotary ones in both directions, and of an encoder-decoder each side its own;
    saved as they are, and no bound in either."""
    config = CosformerConfig(hidden_size=16, num_attention_heads=2)
    assert CosformerForCausalLM(config).config.position == "none"
    assert (
        CosformerModel(CosformerConfig(hidden_size=16, num_attention_heads=2, causal=True)).config.position
        == "none"
    )
    both = CosformerForMaskedLM(config)
    assert both.config.position == "rotary"
    assert not both.config.bounded
    assert config.position is None
    pair = CosformerForConditionalGeneration(config)
    assert (pair.model.encoder.config.position, pair.model.decoder.config.position) == ("rotary", "none")


@pytest.mark.parametrize(
    ("fields", "position"),
    [
        ({"attention": "softmax"}, "rotary"),
        ({"attention": "linear"}, "rotary"),
        ({"attention": "softmax", "attention_parameters": {"windows": [4, 8]}}, "rotary"),
        ({"attention_parameters": {}}, "rotary"),
        ({"attention": "softmax", "hidden_size": 18}, "sinusoidal"),
        ({"attention": "cosformer"}, "none"),
        ({"attention": ["softmax", "cosformer"]}, "none"),
        ({"attention": "relu", "attention_parameters": {"windows": [2, None]}}, "none"),
        ({"attention": "softmax", "position": "none"}, "none"),
    ],
    ids=str,
)
def test_a_causal_model_knows_the_order_of_its_tokens(tmp_path, fields, position):
    """By windows, or by positions where its attention has none; as saved, and in its cache."""
    config = CosformerConfig(**{"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2} | fields)
    net = CosformerForCausalLM(config)
    assert net.config.position == position
    net.save_pretrained(tmp_path)
    assert CosformerForCausalLM.from_pretrained(tmp_path).config.position == position
    if net.config.traits.recurrent:
        net(tokens(1, 9), past_key_values=CosformerCache(config))


def test_a_causal_configuration_of_version_4_had_no_positions(tmp_path):
    write(tmp_path, {**OLD, "attention": "softmax", "causal": True, "defaults_version": 4})
    assert CosformerConfig.from_pretrained(tmp_path).position == "none"


@pytest.mark.parametrize(
    ("fields", "lost"),
    [
        ({"attention_parameters": {"eps": 1e-5}}, True),
        ({"attention": ["softmax", "cosformer"], "attention_parameters": [None, {"eps": 1e-5}]}, True),
        ({"attention": ["linear", "cosformer"], "attention_parameters": {"eps": 1e-5}}, True),
        ({"attention_parameters": {"eps": 1e-5, "windows": None}}, False),
        ({"attention_parameters": {"eps": 1e-5, "windows": [2, 4, 8, 16]}}, False),
        ({"attention_parameters": {}}, False),
        ({"attention": "performer", "attention_parameters": {"features": 9}}, False),
        ({"position": "learned", "attention_parameters": {"eps": 1e-5}}, False),
        ({}, False),
    ],
    ids=str,
)
def test_who_gives_parameters_without_windows_is_told_that_there_are_none(monkeypatch, fields, lost):
    said = []
    monkeypatch.setattr(models_config.logger, "warning_once", said.append)
    CosformerConfig(num_hidden_layers=2, **fields)
    assert len(said) == lost
    if lost:
        assert 'Add the default ones, "windows": [2, 8, 128, 1024], or "windows": None to say' in said[0]


@pytest.mark.parametrize("head", [CosformerForMaskedLM, CosformerForConditionalGeneration])
def test_positions_by_default_are_saved(tmp_path, head):
    net = head(CosformerConfig(hidden_size=16, num_attention_heads=2, initializer_range=0.3)).eval()
    net.save_pretrained(tmp_path)
    again = head.from_pretrained(tmp_path).eval()
    assert again.config.position == net.config.position
    ids = {"input_ids": tokens(1, 9)}
    if head is CosformerForConditionalGeneration:
        ids["decoder_input_ids"] = tokens(1, 5)
    assert torch.equal(again(**ids).logits, net(**ids).logits)


def test_a_folder_of_version_3_has_no_positions(tmp_path):
    write(tmp_path, {**OLD, "defaults_version": 3})
    assert CosformerConfig.from_pretrained(tmp_path).position == "none"


def test_a_cache_of_the_configuration_is_one_of_the_model(tmp_path):
    """Which has decided on its positions."""
    config = CosformerConfig(hidden_size=16, num_attention_heads=2)
    net = CosformerForCausalLM(config).eval()
    cache = CosformerCache(config)
    net(tokens(1, 9), past_key_values=cache)
    cache.save(tmp_path / "cache.safetensors")
    for known in (config, net.config):
        assert CosformerCache.load(tmp_path / "cache.safetensors", known).get_seq_length() == 9
