"""The model of a run: the head its task needs, sizes from the task, the rest as the run says."""

from pathlib import Path
from typing import Any

import torch

from cosformer.models import (
    CosformerConfig,
    CosformerForCausalLM,
    CosformerForConditionalGeneration,
    CosformerForMaskedLM,
    CosformerForSequenceClassification,
    CosformerForSequencePairClassification,
)
from cosformer.tasks import Task
from cosformer.training.run import Run
from cosformer.training.status import best

HEADS: dict[str, Any] = {
    "causal_lm": CosformerForCausalLM,
    "masked_lm": CosformerForMaskedLM,
    "classification": CosformerForSequenceClassification,
    "pair_classification": CosformerForSequencePairClassification,
    "conditional_generation": CosformerForConditionalGeneration,
}


def configuration(run: Run, task: Task) -> CosformerConfig:
    """The task's sizes, and what the run says of the model; the run has the last word."""
    sizes: dict[str, Any] = {
        "vocab_size": task.vocab_size,
        "max_position_embeddings": task.length,
        "pad_token_id": task.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": None,
        "decoder_start_token_id": None,
    }
    if task.num_labels is not None:
        sizes["num_labels"] = task.num_labels
    return CosformerConfig(**{**sizes, **run.model, "attention": run.attention})


def build(run: Run, task: Task) -> Any:
    """The model with its first weights: drawn from the run's seed, or those of `run.initial`."""
    head, config = HEADS[task.head], configuration(run, task)
    torch.manual_seed(run.seed)
    if run.initial is None:
        return head(config)
    of_a_run = (Path(run.initial) / "run.json").is_file()
    return head.from_pretrained(best(run.initial) if of_a_run else run.initial, config=config)
