"""The collator that lays documents end to end."""

import pytest
import torch

from cosformer.models import PackingCollator


def test_what_it_makes():
    made = PackingCollator()(
        [
            {"input_ids": [5, 6, 7]},
            {"input_ids": torch.tensor([8])},
            {"input_ids": [9, 4], "labels": [9, -100]},
        ]
    )
    assert made["input_ids"].tolist() == [[5, 6, 7, 8, 9, 4]]
    assert made["labels"].tolist() == [[-100, 6, 7, -100, -100, -100]]
    assert made["cu_seqlens"].tolist() == [0, 3, 4, 6]
    assert made["cu_seqlens"].dtype == torch.int32


def test_it_leaves_its_inputs_alone():
    ids = torch.tensor([5, 6])
    PackingCollator()([{"input_ids": ids, "labels": ids}])
    assert ids.tolist() == [5, 6]


def test_too_much_for_a_row():
    with pytest.raises(ValueError, match="2 documents with 7 tokens do not fit a row of 6"):
        PackingCollator(max_tokens=6)([{"input_ids": [1, 2, 3]}, {"input_ids": [1, 2, 3, 4]}])


def test_padding_is_left_out():
    made = PackingCollator()(
        [
            {"input_ids": [0, 0, 5, 6], "attention_mask": [0, 0, 1, 1]},
            {
                "input_ids": torch.tensor([7, 8, 0]),
                "attention_mask": torch.tensor([1, 1, 0]),
                "labels": [7, 9, 3],
            },
        ]
    )
    assert made["input_ids"].tolist() == [[5, 6, 7, 8]]
    assert made["labels"].tolist() == [[-100, 6, -100, 9]]
    assert made["cu_seqlens"].tolist() == [0, 2, 4]


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ([], "there are no documents to pack"),
        ([{"labels": [1]}], "input_ids is missing"),
        ([{"input_ids": [1, 2], "completion_mask": [0, 1]}], "but got completion_mask: give the loss"),
        ([{"input_ids": [1, 2], "shift_labels": [2, 3]}], "but got shift_labels"),
        (
            [{"input_ids": [1, 2, 3], "labels": [1, 2]}],
            "labels must have an entry for each .* 3 tokens, but has 2",
        ),
        ([{"input_ids": [1, 2], "attention_mask": [1]}], "attention_mask must have an entry for each"),
        ([{"input_ids": [1.5, 2.7]}], "input_ids of a document must be a list or tensor .* torch.float32"),
        ([{"input_ids": "ab"}], "input_ids of a document .* a str of something else: encode texts"),
        ([{"input_ids": [1, 2], "attention_mask": [0, 0]}, {"input_ids": []}], "have no token to pack"),
        ([{"input_ids": [[1, 2], [3, 4]]}], r"whole numbers, but got torch.int64 of shape \[2, 2\]"),
    ],
)
def test_what_would_be_dropped_or_bent_is_refused(features, message):
    with pytest.raises(ValueError, match=message):
        PackingCollator()(features)


def test_a_text_as_a_tokenizer_gives_it():
    """As tensors of one row, beside the text itself."""
    made = PackingCollator()([{"input_ids": torch.tensor([[5, 6]]), "text": "ab", "labels": None}])
    assert made["input_ids"].tolist() == [[5, 6]]
