"""The model of a run: the head its task needs, sizes from the task, the rest as the run says."""

import logging
import os
from pathlib import Path
from typing import Any

import torch

from cosformer import memory, reading
from cosformer.models import (
    CosformerConfig,
    CosformerForCausalLM,
    CosformerForConditionalGeneration,
    CosformerForMaskedLM,
    CosformerForSequenceClassification,
    CosformerForSequencePairClassification,
    guard,
)
from cosformer.models.loading import load_body
from cosformer.registry import meant_or_known
from cosformer.tasks import Masked, Task
from cosformer.training import parallel
from cosformer.training.run import Run
from cosformer.training.states import without_reports
from cosformer.training.status import best

_logger = logging.getLogger(__name__)

HEADS: dict[str, Any] = {
    "causal_lm": CosformerForCausalLM,
    "masked_lm": CosformerForMaskedLM,
    "classification": CosformerForSequenceClassification,
    "pair_classification": CosformerForSequencePairClassification,
    "conditional_generation": CosformerForConditionalGeneration,
}


def configuration(run: Run, task: Task, vocab_size: int | None = None) -> CosformerConfig:
    """The task's sizes (unless told, its tokens too), and what the run says of the model; the run has the
    last word. What it does not say is as in the paper's model, whatever the defaults are by now: a saved run
    means what it meant."""
    refuse_unknown(run)
    sizes: dict[str, Any] = {
        "position": "none",
        "vocab_size": vocab_size or task.vocab_size,
        "max_position_embeddings": task.length,
        "pad_token_id": task.pad_token_id,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "decoder_start_token_id")),
    }
    if task.num_labels is not None:
        sizes["num_labels"] = task.num_labels
    return CosformerConfig.paper(**{**sizes, **run.model, "attention": run.attention})


def refuse_unknown(run: Run) -> None:
    """Raises where the run says of the model what is no field of this family; transformers has more, of which
    training would follow none."""
    own = CosformerConfig.own_fields()
    for name in run.model:
        if name not in own:
            raise ValueError(f"CosformerConfig has no field {name!r}; {meant_or_known(name, own, 'it has')}")


def refuse_what_does_not_fit(run: Run, task: Task) -> None:
    """Raises where the weights, their gradients and the optimiser's two moments, or the hidden states of one
    layer for the texts that are computed at once, are more than the memory of the machine, by all its
    processes together. Wrong settings of the model come to light here too. Takes no memory itself."""
    config = configuration(run, task)
    with torch.device("meta"):
        whole = memory.of_model(HEADS[task.head](config))
    size, local = (int(os.environ.get(name, 1)) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    # Each builds the whole model before it keeps its shard.
    each = max(whole, 4 * whole // size) if parallel.shards(run) else 4 * whole
    memory.refuse_beyond(local * each, "training this model")
    for name, rows in (
        ("batch_size", run.batch_size // run.accumulation / size),
        ("eval_batch_size", run.eval_batch_size),
    ):
        states = int(local * 4 * rows * min(task.length, config.max_position_embeddings) * config.hidden_size)
        what = f"{name}={getattr(run, name):,} and texts of {task.length:,} tokens"
        memory.refuse_beyond(states, f"one layer with {what}")


def initial(run: Run) -> Path | None:
    """The folder that a run takes its first weights from, if it is one of this machine."""
    if run.initial is None:
        return None
    if not Path(run.initial).is_dir():
        raise FileNotFoundError(
            f"initial: there is no folder {run.initial!r}; give that of a run, a checkpoint or a saved model."
        )
    folder = guard.checked(Path(run.initial))
    return best(folder) if (folder / "run.json").is_file() else folder


def _vocabulary_of_holes(start: Path | None, run: Run) -> int | None:
    """The tokens of the run that a run starts from, if it has filled holes in the inputs of the same task:
    there is one for the holes, which is left out then."""
    if start is None or not (start / "run.json").is_file():
        return None
    first = Run.from_dict(reading.json_file(start / "run.json"))
    holes = Masked(**first.task_settings) if first.task == Masked.name else None
    return holes.vocab_size if holes is not None and holes.of == run.task else None


def build(run: Run, task: Task) -> Any:
    """The model with its first weights: initialised from the run's seed, or those of `run.initial`."""
    head, config = HEADS[task.head], configuration(run, task)
    torch.manual_seed(run.seed)
    if run.initial is None:
        return head(config)
    start = initial(run)
    first = _vocabulary_of_holes(start, run)
    with without_reports():
        net, drawn = load_body(head, start, config=configuration(run, task, first))
        if first is not None:
            net.resize_token_embeddings(config.vocab_size)
    if drawn:
        _logger.warning("%s has no %s: drawn from the run's seed.", run.initial, ", ".join(drawn))
    return net
