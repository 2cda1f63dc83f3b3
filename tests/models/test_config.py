"""The configuration: defaults that work, and one sentence for what cannot be."""

import re
from dataclasses import replace

import pytest
import torch

from cosformer import attention, models, positions
from cosformer.models import (
    CosformerConfig,
    CosformerForCausalLM,
    CosformerForMaskedLM,
    CosformerForSequenceClassification,
    CosformerModel,
)
from tests.models.tiny import build, config, tokens


def test_public_names():
    assert sorted(models.__all__) == [
        "CosformerCache", "CosformerConfig", "CosformerEncoderDecoderModel", "CosformerForCausalLM",
        "CosformerForConditionalGeneration", "CosformerForMaskedLM", "CosformerForQuestionAnswering",
        "CosformerForSequenceClassification",
        "CosformerForSequencePairClassification", "CosformerForTokenClassification", "CosformerModel",
        "HorizonError", "PackingCollator", "byte_tokenizer", "sequence_parallel", "shard_batch",
        "token_fields", "train_bpe",
    ]  # fmt: skip
    for name in models.__all__:
        assert getattr(models, name).__doc__, name


def test_defaults_make_a_usable_small_model():
    net = CosformerForCausalLM(CosformerConfig())
    assert 1e6 < net.num_parameters() < 1e7
    assert net(tokens(1, 5)).logits.shape == (1, 5, 264)
    assert CosformerConfig().horizon == CosformerConfig().max_position_embeddings == 2048
    assert CosformerConfig().intermediate_size == 1024


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hiden_size": 32}, "no field 'hiden_size'; did you mean hidden_size?"),
        ({"wibble": 1}, "no field 'wibble'; it has "),
        ({"hidden_size": 30}, "hidden_size must be a multiple of num_attention_heads 4, but got 30"),
        ({"hidden_size": 0}, "hidden_size must be a positive int, but got 0"),
        ({"num_hidden_layers": 1.5}, "num_hidden_layers must be a positive int"),
        ({"num_decoder_layers": -1}, "num_decoder_layers must be a positive int"),
        ({"num_key_value_heads": 3}, "num_attention_heads must be a multiple of num_key_value_heads 3"),
        ({"vocab_size": "many"}, "vocab_size must be a positive int"),
        ({"attention": "cosfromer"}, "attention must be one of bigbird, cosformer, "),
        ({"attention_parameters": {"epsilon": 1}}, "attention 'cosformer' has no parameter 'epsilon'"),
        ({"attention_parameters": {"eps": -1}}, "eps must be a positive finite number"),
        ({"attention_parameters": {"horizon": 50}}, "attention_parameters must not hold horizon"),
        ({"position": "absolute"}, "position must be one of learned, none, rotary, sinusoidal"),
        ({"position": "rotary", "hidden_size": 36}, "head_dim must be even for rotary positions, but got 9"),
        (
            {"position": None, "position_parameters": {"base": 2}},
            "without one: choose position as well, one of learned, none,",
        ),
        ({"position": "none", "position_parameters": {"base": 2}}, "position 'none' has no parameter 'base'"),
        ({"horizon": 50}, "max_position_embeddings is 96, longer than the horizon 50"),
        ({"horizon": 0}, "horizon must be a positive finite number"),
        ({"embedding_range": 0.0}, "embedding_range must be a positive finite number"),
        ({"ordered_tokens": 1}, "ordered_tokens must be True or False"),
        ({"feed_forward": "relu"}, "feed_forward must be one of gelu, gated"),
        ({"norm": "batch"}, "norm must be one of layer, rms"),
        ({"pair_difference": "squared"}, "pair_difference must be one of signed, absolute"),
        ({"pooling": "last"}, "pooling must be one of cls, mean, max"),
        ({"pooling": "cls", "causal": True}, 'pooling "cls" reads the first token'),
        ({"causal": "yes"}, "causal must be True, False or None"),
        ({"dropout": 1.0}, "dropout must be a number of at least 0 and below 1"),
        ({"dropout": "0.1"}, "dropout must be a number of at least 0 and below 1, but got '0.1'"),
        ({"bias": "no"}, "bias must be True or False"),
        ({"use_cache": "off"}, "use_cache must be True or False"),
        ({"num_attention_heads": "4"}, "num_attention_heads must be a positive int"),
        ({"attention_parameters": 5}, "attention_parameters must be a dict of names and values, or a list"),
        ({"attention_parameters": [1, 2]}, "with one for each layer, but got [1, 2]"),
        ({"position_parameters": "base"}, "position_parameters must be a dict of names and values, but got"),
        ({"defaults_version": 3}, "what was saved with other defaults is read by"),
        ({"norm_eps": 0}, "norm_eps must be a positive finite number"),
    ],
    ids=str,
)
def test_impossible_values(values, message):
    with pytest.raises((ValueError, TypeError)) as caught:
        config(**values)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_heads_decide_what_a_token_sees():
    shared = config()
    assert CosformerForCausalLM(shared).config.causal is True
    assert CosformerForMaskedLM(shared).config.causal is False
    assert shared.causal is None, "the given configuration stays as it was"
    assert CosformerModel(shared).config.causal is False
    assert CosformerForSequenceClassification(config(causal=True)).config.causal is True
    with pytest.raises(
        ValueError, match="CosformerForCausalLM needs causal=True, but the configuration says"
    ):
        CosformerForCausalLM(config(causal=False))
    with pytest.raises(ValueError, match="CosformerForMaskedLM needs causal=False"):
        CosformerForMaskedLM(config(causal=True))


def test_a_head_that_the_attention_cannot_serve(monkeypatch):
    for trait in ("causal", "bidirectional", "grouped_heads"):
        with monkeypatch.context() as patch:
            patch.setattr(attention.Softmax, "traits", replace(attention.traits("softmax"), **{trait: False}))
            if trait == "grouped_heads":
                with pytest.raises(ValueError, match="'softmax', which has no grouped heads, but got 2"):
                    config(attention="softmax", num_key_value_heads=2)
                continue
            head = CosformerForCausalLM if trait == "causal" else CosformerForMaskedLM
            with pytest.raises(
                ValueError, match=f"that is {trait}, and 'softmax' is not: choose one of .*cosformer, "
            ):
                head(config(attention="softmax"))


def test_what_a_configuration_offers_its_attention():
    made = config(max_position_embeddings=50, horizon=70).build_attention()
    assert made.horizon == 70
    assert config(attention_parameters={"eps": 1e-3}).build_attention().eps == 1e-3
    for name in positions.names():
        assert config(position=name).build_position()


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("feed_forward", ["gelu", "gated"])
@pytest.mark.parametrize("pre_norm", [True, False])
def test_every_shape_of_a_block(norm, feed_forward, pre_norm):
    net = build(CosformerModel, norm=norm, feed_forward=feed_forward, pre_norm=pre_norm, bias=False)
    out = net(tokens(2, 7), output_hidden_states=True)
    assert out.last_hidden_state.isfinite().all()
    assert len(out.hidden_states) == 3
    assert (out.hidden_states[-1] == out.last_hidden_state).all()
    gates = [name for name, _ in net.named_parameters() if "gate_proj" in name]
    assert len(gates) == (2 if feed_forward == "gated" else 0)
    assert not [n for n, _ in net.named_parameters() if n.endswith("proj.bias")]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.rand(1, 4), "input_ids must be integers, but got torch.float32"),
        (torch.tensor([[2, 64]]), "input_ids must be from 0 to 63, the model's vocabulary, but got 64"),
        (torch.tensor([[2, -1]]), "input_ids must be from 0 to 63, the model's vocabulary, but got -1"),
    ],
)
def test_tokens_of_another_model(ids, message):
    with pytest.raises(ValueError, match="input_ids") as caught:
        build(CosformerForCausalLM)(ids)
    assert message in str(caught.value)


@pytest.mark.parametrize("given", [-1e9, 2, 0.5, torch.nan, -torch.inf], ids=str)
@pytest.mark.parametrize("head", [CosformerForCausalLM, models.CosformerForSequencePairClassification])
def test_a_mask_is_of_ones_and_zeros(head, given):
    """Of an additive mask, read as 0 for padding, each text would be all that it is not."""
    net, ids = build(head), tokens(2, 10)
    pair = {} if head is CosformerForCausalLM else {"pair_input_ids": ids}
    mask = torch.zeros(2, 10)
    mask[1, 6:] = given
    message = f"attention_mask must hold 1 for real tokens and 0 for padding, or be bool, but got {given:g}:"
    with pytest.raises(ValueError, match=re.escape(message)):
        net(ids, attention_mask=mask, **pair)
    if pair:
        with pytest.raises(ValueError, match=re.escape(message)):
            net(ids, pair_attention_mask=mask, **pair)
    else:
        with pytest.raises(ValueError, match=re.escape(message)):
            net.generate(ids, attention_mask=mask, max_new_tokens=2)
    real = torch.ones(2, 10, dtype=torch.bool)
    real[1, 6:] = False
    same = [
        net(ids, attention_mask=real.to(t), **pair).logits for t in (torch.bool, torch.int64, torch.float)
    ]
    assert torch.equal(same[0], same[1])
    assert torch.equal(same[0], same[2])


def test_what_is_missing_is_named():
    ids = tokens(1, 8)
    for head, message in (
        (models.CosformerForSequencePairClassification, "pair_input_ids (or pair_inputs_embeds) is missing"),
        (models.CosformerForConditionalGeneration, "decoder_input_ids or labels is missing"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            build(head)(ids)


def test_calls_that_contradict_themselves():
    net = build(CosformerForCausalLM)
    ids, bounds = tokens(1, 8), torch.tensor([0, 3, 8])
    ones = torch.ones(1, 8, dtype=torch.long)
    restarting = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
    cases = [
        ({"output_attentions": True}, "output_attentions must be left out"),
        ({"inputs_embeds": net.get_input_embeddings()(ids)}, "either input_ids or inputs_embeds"),
        ({"cu_seqlens": bounds, "attention_mask": ones}, "cu_seqlens goes with neither"),
        ({"cu_seqlens": bounds, "use_cache": True}, "packed documents are whole"),
        ({"attention_mask": ones[:, :5]}, r"attention_mask must have shape [B, T] = [1, 8]"),
        ({"attention_mask": ones[:, None, None]}, "attention_mask must have shape"),
        ({"attention_mask": ones, "position_ids": restarting}, "for packed documents give position_ids"),
        ({"position_ids": torch.arange(8)[None] + 3}, "position_ids must count 0, 1, 2"),
        (
            {"position_ids": torch.arange(5)[None]},
            "position_ids must be of the 8 tokens of this call, but got 5",
        ),
        (
            {"past_key_values": net(ids, use_cache=True).past_key_values, "position_ids": restarting},
            "by attention_m",
        ),
    ]
    for inputs, message in cases:
        with pytest.raises(ValueError, match=re.escape(message)):
            net(ids, **inputs)
    with pytest.raises(ValueError, match="cu_seqlens must start at 0, but it starts at 3"):
        build(CosformerForCausalLM, position="learned")(ids, cu_seqlens=torch.tensor([3, 8]))
    with pytest.raises(ValueError, match="cu_seqlens needs a batch of 1"):
        net(tokens(2, 8), cu_seqlens=bounds)
    with pytest.raises(ValueError, match="use_cache=True needs a causal model"):
        build(CosformerModel)(ids, use_cache=True)
    cache = net(ids, use_cache=True).past_key_values
    hole = torch.cat([ones, torch.zeros(1, 2, dtype=torch.long)], 1)
    with pytest.raises(ValueError, match="without a single real token in this call"):
        net(tokens(1, 2), attention_mask=hole, past_key_values=cache)


@pytest.mark.parametrize("head", [CosformerForMaskedLM, models.CosformerForConditionalGeneration])
def test_embeddings_may_begin_larger_than_the_rest(head, tmp_path):
    encoder_decoder = head is models.CosformerForConditionalGeneration
    net = head(config(embedding_range=1.0, initializer_range=0.02, is_encoder_decoder=encoder_decoder))
    assert net.get_input_embeddings().weight.std().item() == pytest.approx(1.0, rel=0.1)
    others = [p for n, p in net.named_parameters() if n.endswith("proj.weight")]
    assert 0 < max(p.std().item() for p in others) < 0.1
    net.save_pretrained(tmp_path)
    again = head.from_pretrained(tmp_path)
    assert torch.equal(net.get_input_embeddings().weight, again.get_input_embeddings().weight)


@pytest.mark.parametrize("std", [None, 0.3])
def test_levels_begin_on_a_line(std, tmp_path):
    """Neighbours differ by the same step everywhere; as large as other embeddings, and saved as usual."""
    net = CosformerForMaskedLM(
        config(ordered_tokens=True, embedding_range=std, vocab_size=256, hidden_size=256)
    )
    weight = net.get_input_embeddings().weight.detach()
    step = weight.diff(dim=0)
    torch.testing.assert_close(step, step[:1].expand_as(step), atol=1e-6, rtol=1e-3)
    assert step[0].abs().max() > 0
    assert weight.std().item() == pytest.approx(std or net.config.initializer_range, rel=0.25)
    with torch.no_grad():
        net.get_input_embeddings().weight[3] = 1.0
    net.save_pretrained(tmp_path)
    again = CosformerForMaskedLM.from_pretrained(tmp_path)
    assert again.config.ordered_tokens
    assert torch.equal(net.get_input_embeddings().weight, again.get_input_embeddings().weight)
