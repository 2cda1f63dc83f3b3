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
