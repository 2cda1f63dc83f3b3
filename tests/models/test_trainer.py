"""What transformers' Trainer makes of a language model: the loss of each text alone."""

import pytest
import torch
import torch.nn.functional as F
from transformers import DataCollatorWithFlattening, Trainer, TrainingArguments

from cosformer.models import CosformerForCausalLM, PackingCollator
from tests.models.tiny import build

LENGTHS = (5, 9, 12, 3, 7, 20, 4, 6)


def texts():
    torch.manual_seed(0)
    return [{"input_ids": torch.randint(2, 64, (n,)).tolist()} for n in LENGTHS]


def padded(left, masked, first=True):
    def collate(features):
        length = max(len(f["input_ids"]) for f in features)
        ids, mask = (torch.zeros(len(features), length, dtype=torch.int64) for _ in range(2))
        for i, f in enumerate(features):
            n = len(f["input_ids"])
            at = slice(length - n, length) if left else slice(0, n)
            ids[i, at], mask[i, at] = torch.tensor(f["input_ids"]), 1
        labels = ids.masked_fill(mask == 0, -100) if masked else ids
        if not first:
            labels = labels.masked_fill(mask.cumsum(1) == 1, -100)
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    return collate


COLLATORS = {
    "right": padded(False, True), "left": padded(True, True), "unmasked labels": padded(False, False),
    "left, no first": padded(True, True, first=False), "packed": PackingCollator(),
    "flattened": DataCollatorWithFlattening(),
}  # fmt: skip


def model():
    torch.manual_seed(0)
    return build(CosformerForCausalLM, torch.float32).train()


def alone(smoothing=0.0):
    """The mean over all tokens that a token of their own text predicts, and the norm of its gradient."""
    net, losses = model(), []
    for text in texts():
        ids = torch.tensor(text["input_ids"])
        logits = net(ids[None]).logits[0, :-1]
        losses.append(F.cross_entropy(logits, ids[1:], reduction="none", label_smoothing=smoothing))
    loss = torch.cat(losses).mean()
    loss.backward()
    return loss.item(), torch.nn.utils.get_total_norm([p.grad for p in net.parameters()]).item()


def trainer(tmp_path, collator, *, size=8, **options):
    arguments = TrainingArguments(
        tmp_path, max_steps=1, per_device_train_batch_size=size, per_device_eval_batch_size=size,
        logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
        learning_rate=0.0, **options,
    )  # fmt: skip
    data = texts()
    return Trainer(model(), arguments, train_dataset=data, eval_dataset=data, data_collator=collator)


@pytest.mark.parametrize("name", COLLATORS)
def test_the_loss_and_its_gradient(tmp_path, name):
    made = trainer(tmp_path, COLLATORS[name])
    made.train()
    found = made.state.log_history[0]
    assert (found["loss"], found["grad_norm"]) == pytest.approx(alone(), rel=1e-4)
    assert made.evaluate()["eval_loss"] == pytest.approx(alone()[0], rel=1e-4)


@pytest.mark.parametrize("name", ["right", "left, no first", "packed", "flattened"])
@pytest.mark.parametrize(("parts", "smoothing"), [(1, 0.1), (4, 0.1), (4, 0.0)])
def test_in_several_parts_and_smoothed(tmp_path, name, parts, smoothing):
    """Where every label is a target, the Trainer counts right, and smooths right: labels are smoothed for the
    next token, and not for the token itself, which a model then learns to repeat."""
    made = trainer(
        tmp_path, COLLATORS[name], size=8 // parts, gradient_accumulation_steps=parts,
        label_smoothing_factor=smoothing,
    )  # fmt: skip
    made.train()
    found = made.state.log_history[0]
    assert (found["loss"], found["grad_norm"]) == pytest.approx(alone(smoothing), rel=1e-4)
