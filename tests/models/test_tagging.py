"""Labels of tokens and spans of answers: of each text's own tokens alone, learned, and through a pipeline."""

import pytest
import torch
from transformers import pipeline

from cosformer.models import (
    CosformerForQuestionAnswering,
    CosformerForTokenClassification,
    byte_tokenizer,
    token_fields,
)
from tests.models.tiny import PADDINGS, build, close, gradients, padded_batch, tokens


@pytest.mark.parametrize("padding", PADDINGS)
def test_tokens_of_a_padded_batch_have_the_labels_of_each_alone(padding):
    net = build(CosformerForTokenClassification, num_labels=3)
    ids, mask, rows = padded_batch(PADDINGS[padding])
    labels = torch.randint(0, 3, ids.shape)  # of padding too: those do not count
    out = net(ids, attention_mask=mask, labels=labels)
    total = 0.0
    for i, row in enumerate(rows):
        own = labels[i][mask[i].bool()][None]
        alone = net(row[None], labels=own)
        close(out.logits[i][mask[i].bool()], alone.logits[0])
        total += alone.loss * own.numel()
    close(out.loss, total / mask.sum(), 1e-6)


def test_packed_documents_are_labelled_as_each_alone():
    net = build(CosformerForTokenClassification, num_labels=3)
    ids = tokens(1, 9)
    alone = torch.cat([net(ids[:, a:b]).logits for a, b in ((0, 4), (4, 9))], 1)
    close(net(ids, cu_seqlens=torch.tensor([0, 4, 9])).logits, alone)
    close(net(ids, position_ids=torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])).logits, alone)


def test_labels_that_are_ignored():
    net = build(CosformerForTokenClassification, num_labels=3)
    ids = tokens(2, 6)
    labels = torch.tensor([[0, 1, 2, 2, 1, 0], [2, 2, 0, 1, 1, 1]])
    expected = net(ids, labels=labels.masked_fill(labels == 2, -100)).loss
    close(net(ids, labels=labels, ignore_index=2).loss, expected)
    close(net(ids, labels=labels, num_items_in_batch=6).loss, net(ids, labels=labels).loss * 2, 1e-6)


@pytest.mark.parametrize("padding", PADDINGS)
def test_an_answer_does_not_depend_on_padding(padding):
    """Its probability is among the tokens of its own text."""
    net = build(CosformerForQuestionAnswering)
    ids, mask, rows = padded_batch(PADDINGS[padding])
    columns = mask[0].nonzero().flatten()
    start, end = columns[2], columns[5]
    out = net(ids[:1], attention_mask=mask[:1], start_positions=start[None], end_positions=end[None])
    alone = net(rows[0][None], start_positions=torch.tensor([2]), end_positions=torch.tensor([5]))
    close(out.loss, alone.loss)
    for mine, own in ((out.start_logits, alone.start_logits), (out.end_logits, alone.end_logits)):
        close(mine[0].softmax(-1)[columns], own[0].softmax(-1))
        assert mine[0].softmax(-1)[mask[0] == 0].sum() == 0
    assert all(g.isfinite().all() for g in gradients(net, out.loss).values())
    outside = torch.tensor([99])
    assert net(ids[:1], start_positions=outside, end_positions=outside).loss.isnan()
    with pytest.raises(ValueError, match="position_ids must be left out"):
        net(ids, position_ids=torch.arange(12)[None])


def test_an_answer_in_padding_has_no_loss():
    """As the first column is, where a recipe for other models puts those that have none."""
    net = build(CosformerForQuestionAnswering)
    ids, mask, _ = padded_batch(PADDINGS["left"])
    start, end = torch.tensor([0, 3]), torch.tensor([0, 5])
    loss = net(ids, attention_mask=mask, start_positions=start, end_positions=end).loss
    close(loss, net(ids[1:], start_positions=start[1:], end_positions=end[1:]).loss)
    columns = {"start_positions": start[:, None], "end_positions": end[:, None]}
    close(loss, net(ids, attention_mask=mask, **columns).loss)


def test_both_learn():
    """Which tokens are even; and where the only 2 and the only 3 are."""
    torch.manual_seed(0)
    for head, sizes in ((CosformerForTokenClassification, {"num_labels": 2}),
                        (CosformerForQuestionAnswering, {"position": "learned"})):  # fmt: skip
        net = build(head, torch.float32, num_hidden_layers=1, **sizes).train()
        optimiser = torch.optim.Adam(net.parameters(), 0.01)
        losses = []
        for _ in range(60):
            ids = torch.randint(4, 64, (16, 8))
            if head is CosformerForTokenClassification:
                batch = {"labels": ids % 2}
            else:
                places = torch.rand(16, 8).argsort(1)[:, :2]
                ids.scatter_(1, places, torch.tensor([2, 3]).expand(16, 2))
                batch = {"start_positions": places[:, 0], "end_positions": places[:, 1]}
            loss = net(ids, **batch).loss
            losses.append(loss.item())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        assert sum(losses[-5:]) / 5 < 0.3 * losses[0]


def test_a_pipeline_labels_a_text():
    tokenizer = byte_tokenizer()
    labels = {0: "O", 1: "B-X"}
    net = build(CosformerForTokenClassification, torch.float32, id2label=labels, **token_fields(tokenizer))
    texts = ["eleven bytes", "five"]
    found = pipeline("token-classification", net, tokenizer=tokenizer)(texts)
    assert any(found)
    for text, entries in zip(texts, found, strict=True):
        labels = net(**tokenizer(text, return_tensors="pt")).logits[0].argmax(-1).tolist()
        assert [entry["index"] for entry in entries] == [i for i, label in enumerate(labels) if label == 1]
        assert all(text[entry["start"]] == entry["word"].strip() or entry["word"] == "Ġ" for entry in entries)
