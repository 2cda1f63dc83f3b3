"""A saved configuration means what it meant when it was saved, whatever the defaults are by now."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from cosformer.models import CosformerConfig, CosformerForCausalLM, defaults
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
    with pytest.raises(ValueError, match="defaults_version must be one of 1, but the configuration has 99"):
        AutoConfig.from_pretrained(tmp_path)
