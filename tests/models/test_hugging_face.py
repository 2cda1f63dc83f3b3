"""What people who know transformers expect of a model: arguments, configurations, errors, other packages."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, pipeline

from cosformer.models import (
    CosformerConfig,
    CosformerEncoderDecoderModel,
    CosformerForCausalLM,
    CosformerForConditionalGeneration,
    CosformerForMaskedLM,
    CosformerForQuestionAnswering,
    CosformerForSequenceClassification,
    CosformerForTokenClassification,
    CosformerModel,
    byte_tokenizer,
    token_fields,
)
from cosformer.models import config as models_config
from cosformer.models.note import NAME
from tests.models.tiny import build, close, config, tokens

HEADS = (
    CosformerModel, CosformerForCausalLM, CosformerForMaskedLM, CosformerForSequenceClassification,
    CosformerForTokenClassification, CosformerForQuestionAnswering, CosformerForConditionalGeneration,
    CosformerEncoderDecoderModel,
)  # fmt: skip
EACH = pytest.mark.parametrize("head", HEADS, ids=lambda c: c.__name__)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    build(CosformerForCausalLM, torch.float32).save_pretrained(folder)
    return folder


def call(net, ids, **options):
    if net.config.is_encoder_decoder:
        options["decoder_input_ids"] = ids
    return net(ids, **options)


def test_the_folder_may_be_named_by_its_keyword(saved):
    for kind in (CosformerForCausalLM, CosformerConfig, AutoModelForCausalLM):
        kind.from_pretrained(pretrained_model_name_or_path=saved)


@EACH
def test_the_configuration_asks_for_hidden_states(head):
    net, ids = build(head, num_hidden_layers=2), tokens(1, 4)
    wanted = call(net, ids, output_hidden_states=True)
    net.config.output_hidden_states = True
    names = [name for name in wanted if name.endswith("hidden_states")]
    assert names
    found = call(net, ids)
    for name in names:
        assert len(found[name]) == 3
        close(found[name], wanted[name])
    assert not any(name in call(net, ids, output_hidden_states=False) for name in names)
    with pytest.raises(ValueError, match=r"output_hidden_states must be True or False, but got \[0\]"):
        call(net, ids, output_hidden_states=[0])


@EACH
def test_the_configuration_asks_for_tuples(head):
    net, ids = build(head, return_dict=False), tokens(1, 4)
    found, wanted = call(net, ids), call(net, ids, return_dict=True)
    assert type(found) is tuple
    assert torch.equal(found[0], wanted.to_tuple()[0])
    if net.can_generate():
        assert net.generate(ids, max_new_tokens=3).shape[0] == 1


@EACH
def test_attention_weights_are_refused_wherever_they_are_asked_for(head):
    net, ids = build(head, num_hidden_layers=1), tokens(1, 4)
    for asked in ("call", "configuration"):
        net.config.output_attentions = asked == "configuration"
        with pytest.raises(ValueError, match="output_attentions must be left out"):
            call(net, ids, **({"output_attentions": True} if asked == "call" else {}))
    call(net, ids, output_attentions=False)


def test_continuous_batching_is_refused():
    with pytest.raises(ValueError, match=r"generate_batch pages keys and values.*generate_many"):
        build(CosformerForCausalLM).generate_batch([[3, 4, 5]])


def test_a_bidirectional_folder_says_how_it_is_loaded_causal(tmp_path):
    build(CosformerForMaskedLM, torch.float32).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="pass causal=None and position=None to from_pretrained"):
        CosformerForCausalLM.from_pretrained(tmp_path)
    assert CosformerForCausalLM.from_pretrained(tmp_path, causal=None).config.causal is True


@pytest.mark.parametrize("asked", [{"causal": False}, {"causal": False, "position": None}, {"causal": None}])
def test_a_causal_folder_that_looks_both_ways_is_warned_of(asked, tmp_path, monkeypatch):
    """Without positions a text is its mirror image."""
    build(CosformerForCausalLM, torch.float32, position="none").save_pretrained(tmp_path)
    said = []
    monkeypatch.setattr(models_config.logger, "warning_once", said.append)
    net = CosformerForSequenceClassification.from_pretrained(tmp_path, **asked)
    blind = asked == {"causal": False}
    assert all("no positions: looking both ways" in line for line in said)
    assert bool(said) == blind
    ids = tokens(1, 5)
    if asked["causal"] is False:
        a, b = (net.eval()(x).logits for x in (ids, ids.flip(1)))
        assert torch.allclose(a, b, atol=1e-5) == blind


def test_an_unknown_field_is_answered_by_our_own():
    with pytest.raises(ValueError, match="has no field 'zzz'; it has vocab_size, hidden_size") as caught:
        CosformerConfig(zzz=1)
    for name in ("base_model_tp_plan", "transformers_version", "chunk_size_feed_forward"):
        assert name not in str(caught.value)


def test_a_longer_text_takes_the_horizon_with_it(saved):
    """Where the horizon was the greatest length; one that was chosen stays, and is checked."""
    longer = CosformerForCausalLM.from_pretrained(saved, max_position_embeddings=128).config
    assert (longer.max_position_embeddings, longer.horizon) == (128, 128)
    shorter = CosformerConfig.from_pretrained(saved, max_position_embeddings=64)
    assert (shorter.max_position_embeddings, shorter.horizon) == (64, 96), "the weights stay what they were"
    chosen = config(horizon=100).to_dict()
    assert CosformerConfig.from_dict(chosen, max_position_embeddings=99).horizon == 100
    with pytest.raises(ValueError, match="longer than the horizon 100"):
        CosformerConfig.from_dict(chosen, max_position_embeddings=101)
    found, left = CosformerConfig.from_dict(chosen, dropout=0.5, other=1, return_unused_kwargs=True)
    assert (found.dropout, left) == (0.5, {"other": 1})


def test_classes_are_drawn_anew_where_that_is_asked_for(saved):
    """Errors are of the type that transformers raises, and say which argument allows it."""
    trained = AutoModelForSequenceClassification.from_pretrained(saved, num_labels=3, causal=None)
    folder = saved / "classifier"
    trained.save_pretrained(folder)
    with pytest.raises(RuntimeError, match=r"score\.bias has shape \[3\].*ignore_mismatched_sizes=True"):
        AutoModelForSequenceClassification.from_pretrained(folder, num_labels=5)
    more = AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=5, ignore_mismatched_sizes=True
    )
    assert more.score.weight.shape == (5, 32)


def test_only_what_keeps_every_key_is_not_stateful():
    """transformers asks the class before it builds anything, and the object afterwards."""
    assert CosformerForCausalLM._is_stateful
    assert build(CosformerForCausalLM)._is_stateful
    assert not build(CosformerForCausalLM, attention="softmax")._is_stateful
    assert build(CosformerForCausalLM, attention="softmax", conv_size=3)._is_stateful
    assert build(CosformerForCausalLM, attention=["softmax", "cosformer"])._is_stateful
    assert not build(CosformerForCausalLM, attention="synthesizer")._is_stateful, "it has no state at all"


def test_a_configuration_names_no_code(saved):
    """TRL and transformers look into auto_map; it is there, empty, and not saved."""
    found = CosformerConfig.from_pretrained(saved)
    assert not found.auto_map
    assert "AutoModel" not in found.auto_map
    assert "auto_map" not in (saved / "config.json").read_text()


def test_a_saved_folder_says_what_to_import(tmp_path):
    net = build(CosformerForCausalLM, torch.float32)
    net.save_pretrained(tmp_path)
    note = (tmp_path / NAME).read_text()
    assert "CosformerForCausalLM" in note
    assert "`import cosformer` first" in note
    (tmp_path / NAME).write_text("my own")
    net.save_pretrained(tmp_path)
    assert (tmp_path / NAME).read_text() == "my own"


def test_pipelines_say_what_the_model_says():
    """Several texts at once, padded on the left, as each alone."""
    tokenizer, texts = byte_tokenizer(), ["eleven bytes", "five"]
    fields = {"dtype": torch.float32, **token_fields(tokenizer)}
    alone = [tokenizer(text, return_tensors="pt") for text in texts]

    net = build(CosformerForSequenceClassification, num_labels=3, **fields)
    found = pipeline("text-classification", net, tokenizer=tokenizer)(texts, batch_size=2, top_k=None)
    for entries, inputs in zip(found, alone, strict=True):
        expected = net(**inputs).logits[0].softmax(-1)
        scores = {entry["label"]: entry["score"] for entry in entries}
        close(torch.tensor([scores[f"LABEL_{i}"] for i in range(3)]), expected.detach(), 1e-4)

    net = build(CosformerModel, **fields)
    found = pipeline("feature-extraction", net, tokenizer=tokenizer)(texts)
    for states, inputs in zip(found, alone, strict=True):
        close(torch.tensor(states), net(**inputs).last_hidden_state.detach(), 1e-4)

    net = build(CosformerForMaskedLM, **fields)
    masked = f"fi{tokenizer.mask_token}e"
    best = pipeline("fill-mask", net, tokenizer=tokenizer)(masked, top_k=1)[0]
    inputs = tokenizer(masked, return_tensors="pt")
    place = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero().item()
    assert best["token"] == net(**inputs).logits[0, place].argmax().item()
