"""A misspelt argument of a model is refused, and what transformers passes beside ours is not."""

import inspect

import pytest
import torch
from transformers.utils import TransformersKwargs

from cosformer import models
from tests.models.tiny import config, tokens

HEADS = [name for name in models.__all__ if hasattr(getattr(models, name), "forward")]


def head(name):
    encodes = name in ("CosformerForConditionalGeneration", "CosformerEncoderDecoderModel")
    torch.manual_seed(0)
    return getattr(models, name)(config(num_decoder_layers=2) if encodes else config())


def inputs(net):
    takes = inspect.signature(type(net).forward).parameters
    others = [name for name in ("pair_input_ids", "decoder_input_ids") if name in takes]
    return {name: tokens(2, 5) for name in ("input_ids", *others)}


def test_all_models_are_here():
    assert len(HEADS) == 9


@pytest.mark.parametrize("name", HEADS)
def test_a_misspelt_argument_is_refused(name):
    net = head(name)
    given, mask = inputs(net), torch.ones(2, 5)
    for misspelt, meant in (
        ("attentionmask", "attention_mask"),
        ("attention_masks", "attention_mask"),
        ("input_embeds", "inputs_embeds"),
        ("key_mask", "attention_mask"),
        ("attn_mask", "attention_mask"),
        ("lables", "labels"),
    ):
        with pytest.raises(TypeError, match=f"{name} has no argument '{misspelt}': do you mean '{meant}'?"):
            net(**given, **{misspelt: mask})


@pytest.mark.parametrize("name", HEADS)
def test_what_other_models_take_is_no_misspelling(name):
    net = head(name)
    for other in (*TransformersKwargs.__annotations__, "token_type_ids", "head_mask", "foo"):
        net(**inputs(net), **{other: None})
    net(**inputs(net), attn_mask=None, decoder_attention_mask=None, foo=1, is_causal=True)


@pytest.mark.parametrize("name", ["CosformerModel", "CosformerForCausalLM", "CosformerForMaskedLM"])
def test_what_a_model_does_not_know_is_one_graph_with_it(name):
    net = head(name)
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    compiled(**inputs(net), use_cache=False, is_causal=None, output_router_logits=False, foo=1)


@pytest.mark.parametrize("name", ["CosformerForCausalLM", "CosformerForSequenceClassification"])
def test_a_source_without_cross_attention_is_refused(name):
    net = head(name)
    with pytest.raises(ValueError, match="encoder_attention_mask must be left out"):
        net(**inputs(net), encoder_attention_mask=torch.ones(2, 5))
