"""What tells the data of a run from others."""

import pytest
import torch

from cosformer.training.fingerprint import fingerprint
from tests.training.toy import Toy


class Samples:
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": torch.tensor(1)}


class Plain(Toy):
    def collate(self, samples):
        return samples[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.bool, torch.int64])
def test_samples_of_any_type(dtype):
    rows = torch.randint(2, (20, 6), dtype=torch.uint8).to(dtype)
    made = fingerprint(Plain(), Samples(rows))
    assert made == fingerprint(Plain(), Samples(rows.clone()))
    assert made["samples"] == 20
    rows[0, 3] = 1 - rows[0, 3].to(torch.uint8)
    assert fingerprint(Plain(), Samples(rows))["digest"] != made["digest"]


def test_a_part_of_a_larger_tensor_has_the_digest_that_it_always_had():
    """Runs that have begun compare it with theirs."""
    rows = torch.arange(20.0).reshape(10, 2)
    assert fingerprint(Plain(), Samples(rows[:, ::2]))["digest"] == "e52a9c0c8a2afd9f"
