"""The encoder-decoder: cross-attention that knows no padding, and a memory that is read once."""

import pytest
import torch
from torch import nn

from cosformer.models import (
    CosformerCache,
    CosformerEncoderDecoderModel,
    CosformerForConditionalGeneration,
)
from tests.models.tiny import PADDINGS, build, close, gradients, having, pad, padded_batch, tokens


def model(mechanism, **changes):
    return build(
        CosformerForConditionalGeneration,
        attention=mechanism,
        **{"position": "learned", "num_key_value_heads": 2, "num_decoder_layers": 3} | changes,
    )


@pytest.mark.parametrize("target", PADDINGS.values(), ids=PADDINGS)
@pytest.mark.parametrize("source", PADDINGS.values(), ids=PADDINGS)
@having(cross=True, causal=True, key_mask=True)
def test_padding_on_either_side(mechanism, source, target):
    net = model(mechanism)
    ids, mask, rows = padded_batch(source)
    answers = [tokens(sum(target)), tokens(12)]
    first, own = pad(answers[0], target)
    given = torch.stack([first, answers[1]])
    given_mask = torch.stack([own, torch.ones_like(own)])
    out = net(ids, attention_mask=mask, decoder_input_ids=given, decoder_attention_mask=given_mask).logits
    for i, (row, answer) in enumerate(zip(rows, answers, strict=True)):
        alone = net(row[None], decoder_input_ids=answer[None]).logits[0]
        close(out[i][given_mask[i].bool()], alone)


@having(cross=True, causal=True, key_mask=True)
def test_gradients_of_a_padded_batch(mechanism):
    net = model(mechanism)
    ids, mask, rows = padded_batch(PADDINGS["everywhere"])
    labels = tokens(2, 6)
    whole = gradients(net, net(ids, attention_mask=mask, labels=labels).loss)
    apart = gradients(
        net, sum(net(r[None], labels=a[None]).loss for r, a in zip(rows, labels, strict=True)) / 2
    )
    close(whole, apart, 1e-6)
    assert len(whole) == len(list(net.named_parameters()))


@pytest.mark.parametrize(
    "options", [{}, {"num_beams": 3}, {"do_sample": True, "num_return_sequences": 2}], ids=str
)
@having(cross=True, recurrent=True)
def test_generation_is_as_without_a_cache_and_as_alone(mechanism, options):
    net = model(mechanism)
    ids, mask, rows = padded_batch(PADDINGS["inside"])
    results = []
    for cached in (True, False):
        torch.manual_seed(3)
        results.append(net.generate(ids, attention_mask=mask, max_new_tokens=9, use_cache=cached, **options))
    assert torch.equal(*results)
    if "do_sample" not in options:
        for i, row in enumerate(rows):
            assert torch.equal(results[0][i], net.generate(row[None], max_new_tokens=9, **options)[0])


@having(cross=True, recurrent=True)
def test_every_step_has_the_logits_of_no_cache(mechanism):
    net = model(mechanism)
    ids, mask, _ = padded_batch(PADDINGS["left"])
    settings = {"max_new_tokens": 9, "output_logits": True, "return_dict_in_generate": True}
    cached, uncached = (
        net.generate(ids, attention_mask=mask, use_cache=c, **settings) for c in (True, False)
    )
    close(torch.stack(cached.logits), torch.stack(uncached.logits))


@having(cross=True, recurrent=True)
def test_generation_goes_on_from_a_cache(mechanism):
    """The target so far is given whole, as to any model; what the cache has read is not read again."""
    net = model(mechanism)
    ids, mask, _ = padded_batch(PADDINGS["left"])
    settings = {"attention_mask": mask, "return_dict_in_generate": True, "output_logits": True}
    whole = net.generate(ids, max_new_tokens=7, **settings)
    begun = net.generate(ids, max_new_tokens=4, **settings)
    settings |= {"past_key_values": begun.past_key_values, "decoder_input_ids": begun.sequences}
    rest = net.generate(ids, max_new_tokens=3, **settings)
    assert torch.equal(rest.sequences, whole.sequences)
    in_pieces = {"attention_mask": mask, "decoder_input_ids": begun.sequences, "prefill_chunk_size": 2}
    assert torch.equal(net.generate(ids, max_new_tokens=3, **in_pieces), whole.sequences)
    close(torch.stack(rest.logits), torch.stack(whole.logits[4:]))
    with pytest.raises(ValueError, match=r"the prompt has 7 tokens, but past_key_values has read 7 already"):
        net.generate(ids, max_new_tokens=3, **settings | {"decoder_input_ids": rest.sequences[:, :-1]})


@having(cross=True, recurrent=True)
def test_the_source_is_read_once(mechanism):
    """After the first token nothing of the source is projected again: its keys have become a state."""
    net = model(mechanism)
    seen = []
    for layer in net.get_decoder().layers:
        layer.cross_attention.k_proj.register_forward_hook(lambda m, args, out: seen.append(args[0].shape[1]))
    net.generate(tokens(2, 11), max_new_tokens=5, min_new_tokens=5)
    assert seen == [11] * 3 + [0] * 3 * 4


@having(cross=True, constant_state=True)
def test_the_cache_does_not_know_the_length_of_the_source(mechanism):
    net = model(mechanism)
    sizes = [
        net(tokens(1, n), decoder_input_ids=tokens(1, m), use_cache=True).past_key_values.nbytes
        for n, m in ((3, 2), (90, 70))
    ]
    assert sizes[0] == sizes[1]


def test_the_loss_in_chunks_is_that_of_all_logits():
    torch.manual_seed(0)
    whole, chunked = model("cosformer").train(), model("cosformer", loss_chunk=5).train()
    chunked.load_state_dict(whole.state_dict())
    batch = {"input_ids": torch.randint(3, 60, (2, 9)), "labels": torch.randint(3, 60, (2, 7))}
    batch["labels"][1, 4:] = -100
    for more in ({}, {"num_items_in_batch": 3}):
        found, expected = chunked(**batch, **more), whole(**batch, **more)
        assert found.logits is None
        close(found.loss.float(), expected.loss, 1e-6)  # transformers' loss is in float32
        for net, loss in ((chunked, found.loss), (whole, expected.loss)):
            net.zero_grad()
            loss.backward()
        for a, b in zip(chunked.parameters(), whole.parameters(), strict=True):
            close(a.grad, b.grad, 1e-6)
    assert chunked.eval()(**batch).logits is not None


def test_labels_become_inputs_one_place_later():
    net = model("cosformer")
    labels = torch.tensor([[5, 6, 7, -100]])
    assert net.prepare_decoder_input_ids_from_labels(labels).tolist() == [[1, 5, 6, 7]]
    out = net(tokens(1, 4), labels=labels)
    loss = nn.functional.cross_entropy(out.logits[0].float(), labels[0])
    close(out.loss, loss, 1e-6)


def test_the_base_model_is_all_but_the_head(tmp_path):
    net = model("cosformer")
    assert net.base_model is net.model
    ids, target = tokens(2, 7), tokens(2, 5)
    source = net.get_encoder()(ids)
    out = net.model(ids, decoder_input_ids=target, output_hidden_states=True)
    assert torch.equal(net.lm_head(out.last_hidden_state), net(ids, decoder_input_ids=target).logits)
    assert torch.equal(out.encoder_last_hidden_state, source.last_hidden_state)
    assert len(out.encoder_hidden_states) == 3, "the embedding's, and those of two layers"
    assert len(out.decoder_hidden_states) == 4
    net.model.save_pretrained(tmp_path)
    again = CosformerForConditionalGeneration.from_pretrained(tmp_path)
    assert torch.equal(again.model(ids, decoder_input_ids=target)[0], out.last_hidden_state)
    with pytest.raises(ValueError, match="decoder_input_ids is missing"):
        CosformerEncoderDecoderModel(net.config)(ids)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("size", [70, 60])
def test_another_vocabulary_is_that_of_both_sides(tmp_path, size, tied):
    net = model("cosformer", tie_word_embeddings=tied)
    ids = tokens(2, 7) % 60
    before = net(ids, decoder_input_ids=ids).logits
    net.resize_token_embeddings(size)
    after = net(ids, decoder_input_ids=ids).logits
    assert after.shape[-1] == size
    close(after[..., :60], before[..., :60])
    net.save_pretrained(tmp_path)
    again = CosformerForConditionalGeneration.from_pretrained(tmp_path)
    assert all(torch.equal(x, net.state_dict()[name]) for name, x in again.state_dict().items())
    close(again(ids, decoder_input_ids=ids).logits, after)


def test_what_it_refuses():
    net = model("cosformer")
    with pytest.raises(ValueError, match="position_ids must be left out of an encoder-decoder"):
        net(tokens(1, 4), position_ids=torch.arange(4)[None], decoder_input_ids=tokens(1, 2))
    with pytest.raises(ValueError, match="causal must be left out"):
        model("cosformer", causal=True)


def test_a_target_that_is_padded_on_the_left_is_as_alone():
    """As transformers' collators pad it with a tokenizer whose padding is on the left."""
    net, source = build(CosformerForConditionalGeneration), tokens(1, 6)
    target = tokens(1, 4)
    alone = net(source, labels=target)
    labels = torch.cat([torch.full((1, 3), -100), target], 1)
    ids = net.prepare_decoder_input_ids_from_labels(labels)
    start, pad = net.config.decoder_start_token_id, net.config.pad_token_id
    assert ids.tolist() == [[pad] * 3 + [start] + target[0, :3].tolist()]
    for given in (
        {"labels": labels},
        {"labels": labels, "decoder_input_ids": ids},
        {"shift_labels": labels, "decoder_input_ids": ids},
        {"decoder_input_ids": ids},  # as where the Trainer smooths labels
    ):
        for cache in (None, CosformerCache(net.config)):
            out = net(source, **given, past_key_values=cache)
            close(out.logits[:, 3:], alone.logits)
            assert out.loss is None or (out.loss - alone.loss).abs() < 1e-8
    whole = torch.cat([labels, torch.cat([target, tokens(1, 3)], 1)])  # beside a row without padding
    both = net(source.repeat(2, 1), labels=whole)
    close(both.logits[:1, 3:], alone.logits)
    close(both.logits[1:], net(source, labels=whole[1:]).logits)


def test_labels_on_padding_do_not_change_what_the_loss_is_divided_by():
    """transformers' Trainer counts them."""
    net, source, target = build(CosformerForConditionalGeneration), tokens(1, 6), tokens(1, 4)
    mask = torch.tensor([[1, 1, 1, 0]])
    alone = net(source, labels=target[:, :3]).loss
    ids = net.prepare_decoder_input_ids_from_labels(target)
    padded = {"decoder_input_ids": ids, "decoder_attention_mask": mask, "labels": target}
    close(net(source, **padded, num_items_in_batch=4).loss, alone)


@pytest.mark.parametrize("name", ["decoder_start_token_id", "pad_token_id"])
def test_a_token_of_another_tokenizer_is_named(name):
    net = build(CosformerForConditionalGeneration, **{name: 257})
    with pytest.raises(
        ValueError, match=f"{name} must be a token of the vocabulary, below 64, but it is 257"
    ):
        net(tokens(1, 4), labels=tokens(1, 3))


def test_a_prompt_of_the_target_that_has_no_loss_is_read():
    """Where the start token is that of padding, as T5's, ids that come with labels are not taken for it."""
    net, source = (
        build(CosformerForConditionalGeneration, decoder_start_token_id=0, pad_token_id=0),
        tokens(1, 6),
    )
    ids = torch.cat([torch.zeros(1, 1, dtype=torch.int64), tokens(1, 5)], 1)
    labels = torch.cat([ids[:, 1:], tokens(1, 1)], 1)
    labels[:, :3] = -100
    given = {"decoder_input_ids": ids, "labels": labels}
    whole = net(source, decoder_attention_mask=torch.ones_like(ids), **given)
    close(net(source, **given).logits, whole.logits)
    padded = torch.cat([torch.full((1, 3), -100), tokens(1, 4)], 1)  # and what collators make of labels is
    made = net.prepare_decoder_input_ids_from_labels(padded)
    alone = net(source, labels=padded[:, 3:]).loss
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    for run in (net, compiled):
        close(run(source, labels=padded).loss, alone)
        close(run(source, labels=padded, decoder_input_ids=made).loss, alone)


def test_embeddings_of_the_target_are_all_read():
    """They tell nothing of padding: a prompt that has no loss is before the first label, too."""
    net, source, ids = build(CosformerForConditionalGeneration), tokens(1, 6), tokens(1, 7)
    labels = tokens(1, 7)
    labels[:, :3] = -100
    embedded = net.model.decoder.embed_tokens(ids)
    by_ids = net(source, decoder_input_ids=ids, labels=labels)
    out = net(source, decoder_inputs_embeds=embedded, labels=labels)
    close(out.logits, by_ids.logits)
    close(out.loss, by_ids.loss)


def test_labels_of_what_goes_on_from_a_cache():
    net, source = build(CosformerForConditionalGeneration), tokens(1, 6)
    ids, labels = tokens(1, 5), tokens(1, 5)
    labels[0, :2] = -100
    ids[0, 2], ids[0, :2] = net.config.decoder_start_token_id, net.config.pad_token_id
    cache = CosformerCache(net.config)
    net(source, decoder_input_ids=tokens(1, 3), past_key_values=cache)
    given = {"decoder_input_ids": ids, "past_key_values": cache}
    kept = cache.snapshot()
    logits = net(source, **given).logits
    cache.restore(kept)
    close(net(source, labels=labels, **given).logits, logits)
