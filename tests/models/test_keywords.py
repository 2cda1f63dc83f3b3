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


@pytest.mark.parametrize(
    "name",
    ["CosformerModel", "CosformerForCausalLM", "CosformerForMaskedLM", "CosformerForTokenClassification"],
)
def test_packing_that_contradicts_itself_is_refused(name):
    """Or that says which documents there are, and not where they begin."""
    net, row = head(name).eval(), tokens(1, 5)
    bounds, other = torch.tensor([0, 2, 5]), torch.tensor([0, 3, 5], dtype=torch.int32)
    for names in (("cu_seqlens", "cu_seq_lens_q"), ("cu_seq_lens_q", "cu_seq_lens_k")):
        net(row, **dict.fromkeys(names, bounds))
        with pytest.raises(
            ValueError, match=rf"{names[0]} and {names[1]} must be the same .*\[0, 2, 5\] and"
        ):
            net(row, **dict(zip(names, (bounds, other), strict=True)))
    documents = torch.tensor([[0, 0, 1, 1, 1]])
    with pytest.raises(ValueError, match="seq_idx tells of packed documents, and needs where they begin"):
        net(row, seq_idx=documents)
    positions = torch.tensor([[0, 1, 0, 1, 2]])
    net(row, seq_idx=documents, position_ids=positions, cu_seqlens=torch.tensor([0, 2, 2, 5, 5]))
    for given in (
        {"seq_idx": documents, "position_ids": torch.arange(5)[None]},
        {"seq_idx": documents, "cu_seqlens": other},
        {"position_ids": positions, "cu_seqlens": other},
        {"position_ids": positions[0], "cu_seq_lens_q": other},
    ):
        names = " and ".join(sorted(given, key=lambda name: (name[:2] != "cu", name)))
        with pytest.raises(ValueError, match=rf"{names} must tell of the same documents .* leave one"):
            net(row, **given)
    for given, message in (
        (
            {"seq_idx": documents.tolist(), "cu_seqlens": bounds},
            r"seq_idx must be a tensor \[B, T\].*got list",
        ),
        ({"seq_idx": documents[0, 0], "cu_seqlens": bounds}, r"seq_idx must be a tensor \[B, T\].*got \[\]"),
        ({"position_ids": positions[None], "cu_seqlens": bounds}, "position_ids must "),
        ({"position_ids": positions.tolist(), "cu_seqlens": bounds}, "position_ids must "),
        ({"position_ids": positions, "cu_seqlens": bounds[:0]}, "cu_seqlens must "),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            net(row, **given)
    net(tokens(2, 5), seq_idx=documents.expand(2, -1), position_ids=positions)  # one for all rows
    assert torch.equal(net(row, cu_seq_lens_k=bounds)[0], net(row, cu_seqlens=bounds)[0])


@pytest.mark.parametrize("name", ["cu_seq_lens_k", "seq_idx"])
def test_packing_is_refused_by_every_name_where_a_row_is_one_text(name):
    with pytest.raises(ValueError, match=f"{name} must be left out"):
        head("CosformerForSequenceClassification")(tokens(1, 5), **{name: torch.tensor([0, 2, 5])})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cu_seqlens": [0, 5]}, "cu_seqlens must be a tensor .* but got list"),
        ({"cu_seqlens": torch.tensor([[0, 5]])}, r"cu_seqlens must be a tensor .* but got \[1, 2\]"),
        ({"input_ids": None, "inputs_embeds": torch.zeros(1, 5, 7)}, r"\[B, T, 32\], but got \[1, 5, 7\]"),
    ],
)
def test_what_has_the_wrong_form_is_named(given, message):
    with pytest.raises(ValueError, match=message):
        head("CosformerForCausalLM")(**{"input_ids": tokens(1, 5)} | given)
