"""What the losses of language models are told: labels, targets that are moved already, what is ignored."""

import re

import pytest
import torch
from torch.nn.functional import pad

from cosformer.models import (
    CosformerForCausalLM,
    CosformerForConditionalGeneration,
    CosformerForMaskedLM,
    CosformerForSequenceClassification,
    CosformerForTokenClassification,
)
from tests.models.tiny import build, close, tokens

LOSSES = pytest.mark.parametrize("loss", ["cross_entropy", "one_vs_each"])
DOCUMENTS = {
    "whole": {},
    "padded": {"attention_mask": torch.tensor([[0, 0, 1, 1, 1, 0, 1, 1, 1]])},
    "packed": {"cu_seqlens": torch.tensor([0, 4, 4, 9])},
    "restarting": {"position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])},
}


def moved(ids):
    return pad(ids[:, 1:], (0, 1), value=-100)


@LOSSES
@pytest.mark.parametrize("documents", DOCUMENTS.values(), ids=DOCUMENTS)
def test_targets_that_are_moved_already(documents, loss):
    net = build(CosformerForCausalLM, head_loss=loss).train()
    ids = tokens(1, 9)
    expected = net(ids, labels=ids, **documents).loss
    close(net(ids, shift_labels=moved(ids), **documents).loss, expected)
    others = tokens(1, 9)
    close(net(ids, labels=others, shift_labels=moved(ids), **documents).loss, expected)


@LOSSES
def test_a_text_cut_in_two_has_the_loss_of_the_whole(loss):
    """What stands behind the last column of a piece is known from shift_labels alone."""
    net = build(CosformerForCausalLM, head_loss=loss).train()
    ids = tokens(2, 12)
    whole, items = net(ids, labels=ids).loss, 2 * 11
    first = net(ids[:, :5], shift_labels=moved(ids)[:, :5], num_items_in_batch=items, use_cache=True)
    second = net(
        ids[:, 5:],
        shift_labels=moved(ids)[:, 5:],
        num_items_in_batch=items,
        past_key_values=first.past_key_values,
    )
    close(first.loss + second.loss, whole, 1e-6)  # transformers takes the cross entropy in float32


@LOSSES
@pytest.mark.parametrize("head", [CosformerForCausalLM, CosformerForMaskedLM])
def test_another_number_that_is_ignored(head, loss):
    net = build(head, head_loss=loss).train()
    ids = tokens(2, 9)
    ids[:, 4] = 7
    hidden = ids.masked_fill(ids == 7, -100)
    expected = net(ids, labels=hidden).loss
    close(net(ids, labels=ids, ignore_index=7).loss, expected)
    assert (net(ids, labels=ids).loss - expected).abs() > 1e-3


def test_targets_of_an_encoder_decoder_are_its_labels():
    net = build(CosformerForConditionalGeneration)
    source, labels = tokens(2, 5), tokens(2, 6)
    inputs = net.prepare_decoder_input_ids_from_labels(labels)
    close(net(source, decoder_input_ids=inputs, shift_labels=labels).loss, net(source, labels=labels).loss)
    labels[:, 3] = 7
    expected = net(source, decoder_input_ids=inputs, labels=labels.masked_fill(labels == 7, -100))
    close(net(source, decoder_input_ids=inputs, labels=labels, ignore_index=7).loss, expected.loss)


def test_a_masked_language_model_moves_nothing():
    ids = tokens(1, 4)
    with pytest.raises(ValueError, match="shift_labels must be left out"):
        build(CosformerForMaskedLM)(ids, shift_labels=ids)


@LOSSES
def test_labels_may_be_a_part_of_a_larger_tensor(loss):
    """Targets that lie in memory with gaps between rows."""
    ids = tokens(2, 9)
    net = build(CosformerForMaskedLM, head_loss=loss).train()
    close(net(ids[:, :-1], labels=ids[:, 1:]).loss, net(ids[:, :-1], labels=ids[:, 1:].clone()).loss)
    both = build(CosformerForConditionalGeneration)
    close(both(ids, labels=ids[:, 1:]).loss, both(ids, labels=ids[:, 1:].clone()).loss)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "head", [CosformerForCausalLM, CosformerForMaskedLM, CosformerForTokenClassification]
)
def test_labels_of_another_shape_are_refused(head, masked):
    """Those of one row would be spread over all rows by a mask."""
    net, ids = build(head, num_labels=64), tokens(2, 9)
    given = {"attention_mask": torch.ones(2, 9)} if masked else {}
    for labels in (ids[:1], ids[:, 1:], ids[0]):
        said = re.escape(f"[B, T] = [2, 9], one for each column of the logits, but got {list(labels.shape)}")
        with pytest.raises(ValueError, match=said):
            net(ids, labels=labels, **given)


def test_labels_of_another_length_than_the_decoder_reads_are_refused():
    net, ids, mask = build(CosformerForConditionalGeneration), tokens(2, 9), torch.ones(2, 9)
    for given in ({}, {"decoder_attention_mask": mask}):
        with pytest.raises(ValueError, match=r"labels must have shape \[B, T\] = \[2, 9\]"):
            net(ids, decoder_input_ids=ids, labels=ids[:, 1:], **given)


@LOSSES
def test_padding_is_never_predicted(loss):
    """Whatever the labels say there."""
    ids, mask = tokens(2, 9), torch.tensor([[1] * 9, [0, 1, 1, 1, 0, 1, 1, 0, 0]])
    others = ids.where(mask != 0, 5)
    net = build(CosformerForMaskedLM, head_loss=loss).train()
    close(net(ids, mask, labels=ids).loss, net(others, mask, labels=others).loss)
    close(net(ids, mask, labels=ids).loss, net(ids, mask, labels=ids.masked_fill(mask == 0, -100)).loss)
    both = build(CosformerForConditionalGeneration)
    inputs = both.prepare_decoder_input_ids_from_labels(ids)
    shown = [
        both(ids, decoder_input_ids=inputs, decoder_attention_mask=mask, labels=labels).loss
        for labels in (ids, others, ids.masked_fill(mask == 0, -100))
    ]
    close(shown[1], shown[0])
    close(shown[2], shown[0])


def test_the_loss_of_an_encoder_decoder_is_cross_entropy():
    with pytest.raises(ValueError, match="head_loss must be cross_entropy for CosformerForConditional"):
        build(CosformerForConditionalGeneration, head_loss="one_vs_each")


@pytest.mark.parametrize("wrong", [64, -1])
@pytest.mark.parametrize(
    "head", [CosformerForCausalLM, CosformerForMaskedLM, CosformerForConditionalGeneration]
)
def test_labels_outside_of_the_vocabulary_are_named(head, wrong):
    ids = tokens(1, 5)
    labels = ids.clone()
    labels[0, 3] = wrong
    message = f"labels must be from 0 to 63, the model's vocabulary, or -100 for none, but got {wrong}"
    target = {"decoder_input_ids": ids} if head is CosformerForConditionalGeneration else {}
    with pytest.raises(ValueError, match=message):
        build(head)(ids, labels=labels, **target)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 5]), "labels must be from 0 to 1, the num_labels of the configuration, .* got 5"),
        (
            torch.tensor([0]),
            r"whole numbers \(int64\) \[B\] = \[2\], a class .* but got torch.int64 of shape \[1\]",
        ),
        (torch.tensor([[0.0, 1.0]]), r"or floats \[B, num_labels\] = \[2, 2\], .* but got .* shape \[1, 2\]"),
        (torch.tensor([[0, 1], [1, 1]]), r"but got torch.int64 of shape \[2, 2\]"),
        (torch.tensor([0.0, 1.0]), r"but got torch.float32 of shape \[2\]"),
        ([0, 1], "labels must be a tensor of .* but got list"),
    ],
)
def test_classes_that_cannot_be_are_named(labels, message):
    net = build(CosformerForSequenceClassification, num_labels=2)
    with pytest.raises(ValueError, match=message):
        net(tokens(2, 5), labels=labels)


@pytest.mark.parametrize(
    ("kind", "count", "fits", "wrong", "message"),
    [
        (
            "single_label_classification",
            3,
            torch.tensor([0, 2]),
            torch.rand(2, 3),
            "a class for each row, but",
        ),
        ("multi_label_classification", 3, torch.rand(2, 3), torch.tensor([0, 2]), "tensor of floats"),
        ("regression", 3, torch.rand(2, 3), torch.rand(2), r"numbers \[2, 3\], but"),
        ("regression", 1, torch.rand(2), torch.rand(2, 3), r"numbers \[2\], but"),
        (None, 1, torch.rand(2, 1), torch.rand(2, 2), r"numbers \[2\], but"),
    ],
)
def test_labels_are_those_of_the_problem(kind, count, fits, wrong, message):
    net = build(CosformerForSequenceClassification, torch.float32, num_labels=count, problem_type=kind)
    assert net(tokens(2, 5), labels=fits).loss.isfinite()
    with pytest.raises(ValueError, match=message):
        net(tokens(2, 5), labels=wrong)


def test_a_problem_that_is_none_is_named():
    net = build(CosformerForSequenceClassification, torch.float32, num_labels=3)
    net.config.problem_type = "nonsense"
    with pytest.raises(
        ValueError, match=r"problem_type must be one of regression, single_label_.* 'nonsense'"
    ):
        net(tokens(2, 5), labels=torch.tensor([0, 2]))


def test_labels_that_are_no_tensor_are_named():
    ids = tokens(1, 5)
    with pytest.raises(TypeError, match=r"labels must be a tensor \[B, T\], but got list"):
        build(CosformerForCausalLM)(ids, labels=ids.tolist())


def test_a_head_of_a_class_of_its_own_learns_one_vs_each():
    """Its weight is all there is of it; a forward of its own would have no part in the loss."""

    class Plain(torch.nn.Linear):
        pass

    class Doubled(torch.nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    net, ids = build(CosformerForCausalLM, head_loss="one_vs_each", tie_word_embeddings=False), tokens(1, 9)
    expected, weight = net.train()(ids, labels=ids).loss, net.lm_head.weight
    for made in (Plain, Doubled):
        net.lm_head = made(32, 64, bias=False).double()
        net.lm_head.weight = weight
        if made is Plain:
            close(net(ids, labels=ids).loss, expected)
    with pytest.raises(ValueError, match="which is a Doubled with a forward of its own now"):
        net(ids, labels=ids)


@LOSSES
def test_targets_beside_labels_are_counted_by_themselves(loss):
    """The Trainer counts shift_labels where there are any."""
    net, ids = build(CosformerForCausalLM, head_loss=loss), tokens(2, 9)
    targets = moved(ids)
    targets[:, :5] = -100
    count = (targets != -100).sum()
    expected = net(ids, shift_labels=targets).loss
    close(net(ids, labels=ids, shift_labels=targets, num_items_in_batch=count).loss, expected)
