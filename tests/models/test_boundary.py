"""The boundary law in whole models: padded, packed or cut, a token gets what it gets alone."""

from itertools import pairwise

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DataCollatorWithFlattening

from cosformer import positions
from cosformer.models import (
    CosformerForCausalLM,
    CosformerForMaskedLM,
    CosformerModel,
    PackingCollator,
    layout,
)
from tests.models.tiny import PADDINGS, build, close, gradients, having, padded_batch, tokens

MODELS = pytest.mark.parametrize("model", [CosformerForCausalLM, CosformerForMaskedLM])
POSITION = pytest.mark.parametrize("position", positions.names())
PADDING = pytest.mark.parametrize("pattern", PADDINGS.values(), ids=PADDINGS)
LENGTHS = (5, 1, 17, 8)


def logits_of(model, ids, **inputs):
    return model(ids, use_cache=False, **inputs).logits if isinstance(model, CosformerForCausalLM) else model(
        ids, **inputs
    ).logits  # fmt: skip


@PADDING
@POSITION
@MODELS
@having(key_mask=True, causal=True, bidirectional=True)
def test_padded_rows_are_as_each_alone(mechanism, model, position, pattern):
    net = build(model, attention=mechanism, position=position, num_key_value_heads=2)
    ids, mask, rows = padded_batch(pattern)
    logits = logits_of(net, ids, attention_mask=mask)
    for out, own, row in zip(logits, mask.bool(), rows, strict=True):
        close(out[own], logits_of(net, row[None])[0])


@PADDING
@having(key_mask=True, causal=True)
def test_gradients_of_padded_rows_are_those_of_each_alone(mechanism, pattern):
    net = build(CosformerForCausalLM, attention=mechanism, position="learned")
    ids, mask, rows = padded_batch(pattern)
    weight = torch.randn(12, 64, dtype=torch.float64)

    def loss(logits, n):
        return (logits * weight[:n]).sum()

    together = logits_of(net, ids, attention_mask=mask)
    whole = gradients(
        net, sum(loss(o[m], len(r)) for o, m, r in zip(together, mask.bool(), rows, strict=True))
    )
    apart = gradients(net, sum(loss(logits_of(net, row[None])[0], len(row)) for row in rows))
    close(whole, apart)
    assert len(whole) == len(list(net.named_parameters())), "every parameter has a gradient"


@PADDING
@having(key_mask=True, causal=True)
def test_padding_may_hold_anything(mechanism, pattern):
    """NaN in the embeddings of padding: neither values nor gradients notice."""
    net = build(CosformerForCausalLM, attention=mechanism, position="sinusoidal")
    ids, mask, _ = padded_batch(pattern)
    clean = net.get_input_embeddings()(ids).detach()
    dirty = clean.masked_fill(mask[..., None] == 0, torch.nan)
    results = []
    for x in (clean, dirty):
        x.requires_grad_()
        logits = net(inputs_embeds=x, attention_mask=mask, use_cache=False).logits
        found = gradients(net, logits[mask.bool()].square().sum())
        results.append((logits[mask.bool()], found, x.grad))
    close(*results)
    assert all(g.isfinite().all() for g in results[1][1].values())


@pytest.mark.parametrize("windows", [None, [5, None]], ids=str)
def test_a_later_token_may_hold_anything(windows):
    """NaN or infinity in the embedding of a token: no bit of what comes before it notices."""
    parameters = {} if windows is None else {"windows": windows}
    net = build(CosformerForCausalLM, attention_parameters=parameters, position="rotary", conv_size=4,
                num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=100)  # fmt: skip
    x = torch.randn(1, 100, net.config.hidden_size, dtype=net.dtype)
    clean = net(inputs_embeds=x).logits
    for value in (torch.nan, torch.inf):
        x[:, 70] = value
        found = net(inputs_embeds=x).logits
        assert torch.equal(found[:, :70], clean[:, :70])
        assert not found[:, 70:].isfinite().all(), "what is seen is not hidden"


@PADDING
def test_losses_of_padded_rows(pattern):
    """Labels may simply be the tokens: padding is not predicted, nor anything from it."""
    net = build(CosformerForCausalLM)
    ids, mask, rows = padded_batch(pattern)
    loss = net(ids, attention_mask=mask, labels=ids).loss
    alone = [net(row[None], labels=row[None]).loss * (len(row) - 1) for row in rows]
    close(loss, sum(alone) / sum(len(row) - 1 for row in rows), 1e-6)


def documents():
    return [tokens(n) for n in LENGTHS]


def packings(docs):
    """The ways to say that documents are packed."""
    bounds = torch.tensor([0, *torch.tensor([len(d) for d in docs]).cumsum(0).tolist()])
    row = torch.cat(docs)[None]
    restarts = torch.cat([torch.arange(len(d)) for d in docs])[None]
    features = [{"input_ids": d.tolist(), "labels": d.tolist()} for d in docs]
    theirs = DataCollatorWithFlattening()(features)
    flash = DataCollatorWithFlattening(return_flash_attn_kwargs=True)(features)
    return {
        "cu_seqlens": {"input_ids": row, "labels": row, "cu_seqlens": bounds},
        "position_ids": {"input_ids": row, "labels": row, "position_ids": restarts},
        "flattening collator": dict(theirs),
        "flattening collator, flash": dict(flash),
        "packing collator": PackingCollator()([{"input_ids": d} for d in docs]),
    }


@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointed"])
@pytest.mark.parametrize("how", packings(documents()))
@having(cu_seqlens=True, causal=True)
def test_packed_documents_are_as_each_alone(mechanism, how, checkpointing):
    net = build(CosformerForCausalLM, attention=mechanism, position="learned", num_key_value_heads=2)
    docs = documents()
    inputs = packings(docs)[how]
    alone = [net(doc[None], use_cache=False).logits[0] for doc in docs]
    expected = torch.cat([a[:-1] for a in alone if len(a) > 1])
    loss = torch.nn.functional.cross_entropy(expected.float(), torch.cat([d[1:] for d in docs]))
    apart = gradients(net, loss)
    if checkpointing:
        net.gradient_checkpointing_enable()
        net.train()
    packed = net(**inputs, use_cache=False)
    close(packed.logits[0], torch.cat(alone))
    close(packed.loss, loss, 1e-6)
    close(gradients(net, packed.loss), apart)


@having(cu_seqlens=True, bidirectional=True)
def test_packed_documents_in_both_directions(mechanism):
    net = build(CosformerModel, attention=mechanism, position="rotary", causal=False)
    docs = documents()
    inputs = packings(docs)["cu_seqlens"]
    out = net(inputs["input_ids"], cu_seqlens=inputs["cu_seqlens"]).last_hidden_state
    close(out[0], torch.cat([net(doc[None]).last_hidden_state[0] for doc in docs]))


def test_several_packed_rows():
    """Rows of a batch that are packed each: position_ids that restart within them."""
    net = build(CosformerForCausalLM, position="learned")
    ids = tokens(2, 10)
    at = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]])
    out = net(ids, position_ids=at).logits
    for row, bounds in ((0, (0, 3, 10)), (1, (0, 8, 10))):
        for a, b in pairwise(bounds):
            close(out[row, a:b], net(ids[row : row + 1, a:b]).logits[0])


@pytest.mark.parametrize("pieces", [[12], [1] * 12, [5, 7], [11, 1], [3, 3, 6]], ids=str)
@pytest.mark.parametrize("pattern", [PADDINGS["left"], [1] * 12], ids=["left", "whole"])
@having(recurrent=True, causal=True)
def test_pieces_with_a_cache_are_the_whole(mechanism, pattern, pieces):
    """Rotary positions: a wrong one shows even where the attention has none of its own."""
    net = build(CosformerForCausalLM, attention=mechanism, position="rotary")
    ids, mask, _ = padded_batch(pattern)
    whole = net(ids, attention_mask=mask, use_cache=False).logits
    cache, outs, done = None, [], 0
    for n in pieces:
        out = net(
            ids[:, done : done + n],
            attention_mask=mask[:, : done + n],
            past_key_values=cache,
            use_cache=True,
        )
        cache, done = out.past_key_values, done + n
        outs.append(out.logits)
    close(torch.cat(outs, 1)[mask.bool()], whole[mask.bool()])
    assert cache.get_seq_length() == 12
    assert cache.past.positions.tolist() == mask.sum(1).tolist()


@pytest.mark.parametrize("pattern", PADDINGS.values(), ids=PADDINGS)
@having(recurrent=True, causal=True)
def test_a_padded_prompt_continues_as_it_does_alone(mechanism, pattern):
    """Whatever the padding: the next tokens stand right behind the last real one."""
    net = build(CosformerForCausalLM, attention=mechanism, position="learned")
    ids, mask, rows = padded_batch(pattern)
    more = tokens(2, 3)
    start = net(ids, attention_mask=mask, use_cache=True)
    out = net(
        more,
        attention_mask=torch.cat([mask, torch.ones_like(more)], 1),
        past_key_values=start.past_key_values,
    ).logits
    for i, row in enumerate(rows):
        alone = net(torch.cat([row, more[i]])[None]).logits[0]
        close(out[i], alone[len(row) :])
        close(start.logits[i, -1], alone[len(row) - 1])


def test_padding_does_not_count_towards_the_end():
    """96 positions: 150 columns with 90 real tokens are fine."""
    net = build(CosformerForCausalLM)
    mask = torch.ones(1, 150, dtype=torch.long)
    mask[0, :30] = mask[0, 50:80] = 0
    ids = tokens(1, 150)
    out = net(ids, attention_mask=mask, use_cache=True)
    close(out.logits[mask.bool()], net(ids[mask.bool()][None]).logits[0])
    assert out.past_key_values.past.seen == 90


def test_padding_makes_no_device_wait_in_training():
    """Only a state that is carried, or a row that may be too long, is worth a look at the mask."""
    looks = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            looks.extend([func] if func is torch.ops.aten._local_scalar_dense.default else [])
            return func(*args, **kwargs or {})

    mask = torch.tensor([[True, True, False, False], [False, True, False, True]])
    with Watch():
        layout.padded(mask, None, 4, keeps=False)
        layout.padded(mask, None, None, keeps=False)
        assert not looks
        layout.padded(mask, None, 3, keeps=False)
        assert len(looks) == 2
        layout.padded(mask, None, 4, keeps=True)
        assert len(looks) == 3
