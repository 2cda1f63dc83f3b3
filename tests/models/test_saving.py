"""Saved and loaded: the same logits, through every door; and one sentence for each thing that is wrong."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from cosformer import attention, positions
from cosformer.models import (
    CosformerConfig,
    CosformerEncoderDecoderModel,
    CosformerForCausalLM,
    CosformerForConditionalGeneration,
    CosformerForMaskedLM,
    CosformerForQuestionAnswering,
    CosformerForSequenceClassification,
    CosformerForSequencePairClassification,
    CosformerForTokenClassification,
    CosformerModel,
)
from tests.models.tiny import build, tokens

DOORS = {
    CosformerModel: AutoModel,
    CosformerForCausalLM: AutoModelForCausalLM,
    CosformerForMaskedLM: AutoModelForMaskedLM,
    CosformerForSequenceClassification: AutoModelForSequenceClassification,
    CosformerForSequencePairClassification: CosformerForSequencePairClassification,
    CosformerForTokenClassification: AutoModelForTokenClassification,
    CosformerForQuestionAnswering: AutoModelForQuestionAnswering,
    CosformerForConditionalGeneration: AutoModelForSeq2SeqLM,
    CosformerEncoderDecoderModel: CosformerEncoderDecoderModel,
}


def output(net, ids):
    more = {}
    if isinstance(net, CosformerForSequencePairClassification):
        more = {"pair_input_ids": ids.flip(1)}
    if net.config.is_encoder_decoder:
        more = {"decoder_input_ids": ids.flip(1)}
    out = net(ids, **more)
    if isinstance(net, CosformerForQuestionAnswering):
        return torch.stack([out.start_logits, out.end_logits])
    return out.last_hidden_state if "last_hidden_state" in out else out.logits


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head", DOORS, ids=lambda c: c.__name__)
def test_the_same_logits(head, dtype, tied, tmp_path):
    net = build(head, dtype, tie_word_embeddings=tied, position="learned", norm="rms", feed_forward="gated")
    net.save_pretrained(tmp_path)
    ids = tokens(2, 11)
    for door in (head, DOORS[head]):
        again = door.from_pretrained(tmp_path).eval()
        assert type(again) is head
        assert again.dtype == dtype
        assert torch.equal(output(again, ids), output(net, ids))
    names = load_file(tmp_path / "model.safetensors")
    assert sorted(p.name for p in tmp_path.glob("*model*")) == ["model.safetensors"], "safetensors only"
    if tied and hasattr(net, "lm_head"):
        assert "lm_head.weight" not in names
        assert again.lm_head.weight is again.get_input_embeddings().weight


@pytest.mark.parametrize("position", positions.names())
@pytest.mark.parametrize("mechanism", attention.names())
def test_nothing_is_left_uninitialised(mechanism, position, tmp_path):
    """Fresh memory is full of NaN here (see conftest): what loading does not fill would show."""
    head = CosformerForCausalLM if attention.traits(mechanism).causal else CosformerForMaskedLM
    net = build(head, torch.float32, attention=mechanism, position=position)
    net.save_pretrained(tmp_path)
    again = head.from_pretrained(tmp_path)
    for name, x in [*again.named_parameters(), *again.named_buffers()]:
        assert x.isfinite().all(), name
        assert torch.equal(x, net.get_parameter(name) if name in dict(net.named_parameters()) else x), name
    # A weight that the file lacks is initialised at random, as in a new model.
    stored = load_file(tmp_path / "model.safetensors")
    del stored["model.layers.1.feed_forward.up_proj.weight"], stored["model.layers.0.attention_norm.weight"]
    stored = {k: x for k, x in stored.items() if "position" not in k}
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    partial = head.from_pretrained(tmp_path)
    for name, x in [*partial.named_parameters(), *partial.named_buffers()]:
        assert x.isfinite().all(), name
    drawn = partial.model.layers[1].feed_forward.up_proj.weight
    assert 0.2 < drawn.std() < 0.3
    assert (partial.model.layers[0].attention_norm.weight == 1).all()


def test_the_configuration_comes_back(tmp_path):
    config = CosformerConfig(
        hidden_size=24,
        num_attention_heads=3,
        horizon=5000.5,
        attention_parameters={"eps": 1e-4},
        position="rotary",
        position_parameters={"base": 500.0},
        num_labels=5,
        causal=True,
    )
    config.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(again, CosformerConfig)
    assert again.to_dict() | {"_name_or_path": ""} == config.to_dict()
    assert json.loads((tmp_path / "config.json").read_text())["attention"] == "cosformer"


def saved(tmp_path):
    build(CosformerForCausalLM, torch.float32).save_pretrained(tmp_path)
    return tmp_path / "model.safetensors"


def test_a_missing_file(tmp_path):
    saved(tmp_path).unlink()
    with pytest.raises(
        FileNotFoundError, match=r"no model\.safetensors was found for .*save_pretrained writes it"
    ):
        CosformerForCausalLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("keep", [0.9, 0.001, 0])
def test_a_truncated_file(tmp_path, keep):
    path = saved(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    for door in (CosformerForCausalLM, AutoModelForCausalLM):
        with pytest.raises(
            ValueError, match=r"a weight file of .* is damaged or incomplete .*: copy it again"
        ):
            door.from_pretrained(tmp_path)


def test_shapes_that_do_not_fit(tmp_path):
    saved(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"intermediate_size": 40}))
    message = (
        r"do not fit its configuration: model.layers.0.feed_forward.down_proj.weight has shape \[32, 48\] in "
        r"the file and \[32, 40\] in the model \(and 5 more\).* again \(ignore_mismatched_sizes=True\)\."
    )
    for kind in (ValueError, RuntimeError):  # ours, and that of transformers
        with pytest.raises(kind, match=message):
            CosformerForCausalLM.from_pretrained(tmp_path)
    _, info = CosformerForCausalLM.from_pretrained(
        tmp_path, ignore_mismatched_sizes=True, output_loading_info=True
    )
    assert len(info["mismatched_keys"]) == 6


def test_pickles_are_not_read(tmp_path):
    path = saved(tmp_path)
    torch.save(load_file(path), tmp_path / "pytorch_model.bin")
    path.unlink()
    with pytest.raises(FileNotFoundError, match="weights in another format are not read"):
        CosformerForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="use_safetensors must not be False"):
        CosformerForCausalLM.from_pretrained(tmp_path, use_safetensors=False)


def test_an_encoder_decoder_through_the_wrong_door(tmp_path):
    build(CosformerForConditionalGeneration, torch.float32).save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=r"use CosformerForConditionalGeneration .*, or CosformerEncoderDecoderModel"
    ):
        AutoModel.from_pretrained(tmp_path)
