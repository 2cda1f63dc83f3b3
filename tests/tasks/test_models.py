"""What `collate` gives is what a model takes: a forward pass with a loss for each kind of head."""

import pytest
import torch

from cosformer import models, tasks
from tests.tasks.tiny import TASKS

CLASSES = {
    "causal_lm": models.CosformerForCausalLM,
    "masked_lm": models.CosformerForMaskedLM,
    "classification": models.CosformerForSequenceClassification,
    "pair_classification": models.CosformerForSequencePairClassification,
}
CASES = {
    "copy": {},
    "enwik8": {},
    "listops": {},
    "image": {},
    "stsb": {},
    "citations": {"length": 200},
    "mlm": {},
    "mlm joined": {"documents": "joined"},
}


@pytest.mark.parametrize("case", CASES)
def test_a_model_takes_a_batch(case):
    name, settings = case.split()[0], CASES[case]
    write, own = TASKS[name]
    if write:
        write()
    task = tasks.build(name, **own | settings)
    config = models.CosformerConfig(
        vocab_size=task.vocab_size,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=task.length,
        pad_token_id=task.pad_token_id,
        bos_token_id=None,
        eos_token_id=None,
        **({} if task.num_labels is None else {"num_labels": task.num_labels}),
    )
    model = CLASSES[task.head](config).eval()
    rows = task.dataset("train")
    batch = task.collate([rows[i] for i in range(min(3, len(rows)))])
    with torch.no_grad():
        out = model(**batch)
    assert torch.isfinite(out.loss)
    statistics = task.metric.rows(out.logits, batch)
    assert statistics.shape[0] == len(batch["labels"])
    if task.head in ("causal_lm", "masked_lm") and task.metric.name != "accuracy":
        mean = statistics[:, 0].sum() / statistics[:, 1].sum()
        assert float(mean) == pytest.approx(float(out.loss), rel=1e-5), "the metric is the mean of the loss"
