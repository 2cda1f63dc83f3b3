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
    ):
        with pytest.raises(TypeError, match=f"{name} has no argument '{misspelt}': do you mean '{meant}'?"):
            net(**given, **{misspelt: mask})


@pytest.mark.parametrize("name", HEADS)
def test_what_other_models_take_is_no_misspelling(name):
    net = head(name)
    for other in (*TransformersKwargs.__annotations__, "token_type_ids", "head_mask", "foo"):
        net(**inputs(net), **{other: None})
