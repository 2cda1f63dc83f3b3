"""Every way of choosing cosFormer reaches every attention of a model, and whoever asks is told."""

import inspect
from collections import Counter

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForMaskedLM

from cosformer.integrations import transformers as drop_in
from cosformer.integrations.transformers import enable, recorded_calls, report, verify
from tests.integrations.tiny import HOSTS, LENGTHS, POSITIONS, arguments, assert_close, refused, rows, tiny


@pytest.mark.parametrize("name", HOSTS)
def test_every_attention_runs_once_in_a_forward(name):
    model = tiny(name)
    verify(model)
    uses = report(model)
    assert len(uses) == HOSTS[name].attentions
    with recorded_calls() as calls:
        model(**arguments(name, rows(*LENGTHS)))
    assert Counter(calls) == Counter(model.get_submodule(use.name) for use in uses)
    model(**arguments(name, rows(*LENGTHS)))
    assert len(calls) == len(uses), "calls outside the block do not count"


class TestTheWaysIn:
    def test_loading_building_and_switching_give_the_same(self, tmp_path):
        given = arguments("bert", rows(*LENGTHS))
        built = tiny("bert")
        expected = built(**given).logits
        built.save_pretrained(tmp_path)
        loaded = AutoModelForMaskedLM.from_pretrained(tmp_path, attn_implementation="cosformer")
        plain = AutoModelForMaskedLM.from_pretrained(tmp_path)
        config = AutoConfig.from_pretrained(tmp_path)
        made = AutoModelForMaskedLM.from_config(config, attn_implementation="cosformer")
        made.load_state_dict(built.state_dict())
        assert (plain.double()(**given).logits - expected).abs().max() > 0.1
        plain.set_attn_implementation("cosformer")
        for model in (loaded, plain, made):
            verify(model)
            assert_close(model.double().eval()(**given).logits, expected)

    def test_neither_the_choice_nor_the_horizon_of_the_process_is_saved(self, tmp_path):
        """docs/drop_in.md says so: if transformers begins to save it, the page has to change."""
        enable(horizon=100)
        tiny("bert").save_pretrained(tmp_path)
        assert not any(use.runs for use in report(AutoModelForMaskedLM.from_pretrained(tmp_path)))
        enable()
        again = AutoModelForMaskedLM.from_pretrained(tmp_path, attn_implementation="cosformer")
        assert {use.detail for use in report(again)} == {f"self-attention with horizon {POSITIONS}"}

    @pytest.mark.parametrize("name", [name for name in HOSTS if "-to-" not in name])
    def test_switching_reaches_every_module(self, name):
        model = tiny(name, attn_implementation="sdpa")
        assert not any(use.runs for use in report(model))
        model.set_attn_implementation("cosformer")
        verify(model)
        given = arguments(name, rows(*LENGTHS))
        assert_close(model(**given).logits, tiny(name)(**given).logits)


def test_report_names_every_module_and_why():
    model = tiny("bart", attn_implementation="sdpa")
    assert [str(use) for use in report(model)][:1] == [
        "model.encoder.layers.0.self_attn (BartAttention): not cosFormer, its configuration says "
        "attn_implementation='sdpa'"
    ]
    model.set_attn_implementation("cosformer")
    assert [(use.name, use.detail) for use in report(model)] == [
        ("model.encoder.layers.0.self_attn", "self-attention with horizon 64"),
        ("model.encoder.layers.1.self_attn", "self-attention with horizon 64"),
        ("model.decoder.layers.0.self_attn", "causal self-attention with horizon 64"),
        ("model.decoder.layers.0.encoder_attn", "cross-attention with horizon 64"),
        ("model.decoder.layers.1.self_attn", "causal self-attention with horizon 64"),
        ("model.decoder.layers.1.encoder_attn", "cross-attention with horizon 64"),
    ]
    mixed = torch.nn.ModuleDict({"host": model, "other": torch.nn.MultiheadAttention(8, 2)})
    assert str(report(mixed)[-1]) == (
        "other (MultiheadAttention): not cosFormer, its class computes the attention itself and asks no "
        "attention interface"
    )


def test_verify_finds_a_part_that_was_left_behind():
    """An encoder that came built keeps a configuration of its own, out of reach of the switch."""
    model = tiny("bert-to-bert", attn_implementation="sdpa")
    model.set_attn_implementation("cosformer")
    with refused(
        "2 of 6 attention modules of EncoderDecoderModel do not run cosFormer",
        "encoder.encoder.layer.0.attention.self, as its configuration says attn_implementation='sdpa'.",
    ):
        verify(model)
    with refused("Linear has no attention module"):
        verify(nn.Linear(3, 3))


def test_public_interface():
    assert sorted(drop_in.__all__) == ["AttentionUse", "enable", "recorded_calls", "report", "verify"]
    assert all(getattr(drop_in, name).__doc__ for name in drop_in.__all__)
    parameters = inspect.signature(enable).parameters.values()
    assert [(p.name, p.kind, p.default) for p in parameters] == [
        ("horizon", inspect.Parameter.KEYWORD_ONLY, None),
        ("windows", inspect.Parameter.KEYWORD_ONLY, None),
        ("backend", inspect.Parameter.KEYWORD_ONLY, "auto"),
        ("also", inspect.Parameter.KEYWORD_ONLY, ()),
    ]
