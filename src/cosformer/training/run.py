"""Everything a run depends on, as one frozen object that goes to JSON and back."""

import copy
import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cosformer.ops.checks import flag, positive, positive_int
from cosformer.record_format import NON_SEMANTIC_FIELDS, RENAMED_FIELDS, current_names
from cosformer.registry import meant_or_known
from cosformer.training import schedules

_REQUIRED = ("task", "steps", "batch_size", "learning_rate")
_CHOICES = {
    "schedule": schedules.NAMES,
    "precision": ("fp32", "bf16"),
    "device": ("auto", "cpu", "cuda"),
    "data": ("auto", "device", "loader"),
}

# Whole numbers, from and to. A seed is what NumPy takes; more workers are processes that wait for each other.
_WHOLE = {
    "steps": (1, 10**9), "batch_size": (1, 10**9), "accumulation": (1, 10**9), "eval_batch_size": (1, 10**9),
    "eval_every": (1, 10**12), "save_every": (1, 10**12), "log_every": (1, 10**12),
    "save_total_limit": (1, 10**6),
    "sequence_parallel": (1, 10**6), "warmup": (0, 10**9), "seed": (0, 2**32 - 1), "workers": (0, 256),
}  # fmt: skip
_KINDS: dict[str, Any] = {
    "task": str, "task_settings": dict, "model": dict, "attention": str | list, "initial": str | None,
    "compile_backend": str,
}  # fmt: skip
_FIRST_NAMES = {new: old for old, new in RENAMED_FIELDS.items()}
_WORDS = {str: "text", dict: "an object", str | list: "a name or a list of names", str | None: "a folder"}


@dataclass(frozen=True)
class Run:
    """A complete run. Two runs with equal fields, on the same machine, end with the same weights.

    Args:
        task, task_settings: a name from `cosformer.tasks.names()` and what differs from its defaults.
        attention: a name from `cosformer.attention.names()`; or a list of them, one for each layer.
        model: fields of `CosformerConfig` but for `attention`; sizes of the vocabulary, of the labels and of
            the longest text come from the task. What it leaves out is as in `CosformerConfig.paper()`.
        initial: folder of a saved model of the family, or of a run, whose (best) weights the run starts
            from; what it lacks (a classifier, say) is initialised. None: everything is initialised.
        steps: updates of the weights.
        batch_size: samples of an update, over all processes and all parts of an accumulation: the same run
            gives the same losses however it is spread.
        accumulation: parts that the batch of a process is computed in, one after the other.
        learning_rate, schedule, warmup, end, power: see `cosformer.training.schedules`.
        beta1, beta2, epsilon, weight_decay: of AdamW; matrices and embeddings decay, biases and norms do not.
        max_grad_norm: the gradient is clipped to this norm; None: not clipped.
        eval_every: steps between two evaluations on the validation split.
        eval_batch_size: samples of a batch there; the score does not depend on it.
        patience: evaluations without a better score after which the run ends; None: it never does early.
        save_every: steps between two checkpoints; beside these, each better score leaves one.
        save_total_limit: newest checkpoints kept beside the best one.
        log_every: steps after which losses are fetched from the device, written and shown.
        precision: "fp32", or "bf16" for autocast over float32 weights.
        compile, compile_backend: whether and how `torch.compile` is used for the layers, in training.
        cuda_graph: capture forward and backward as a CUDA graph, for models so small that the host cannot
            launch their kernels as fast as a GPU computes them; one process on a GPU.
        gradient_checkpointing: recompute activations in the backward pass, to save memory.
        shard: whether several processes share the weights, gradients and moments (FSDP2), to save memory;
            else each has all of them (DDP).
        sequence_parallel: number of processes that share each text, a part each; it divides the number of
            processes.
        device: "auto" takes a GPU where there is one.
        data: where the samples of a step come from: "device" keeps the whole split there, "loader" collates
            each batch on the CPU, "auto" takes the first where the split is small and its samples fixed.
        group_by_length: batches hold texts of similar length, drawn from 64 batches at a time, so that little
            is padded; for texts whose lengths differ.
        workers: processes of the loader; 0: the main process.
        recipe, scale: the recipe and scale that built it, for the record.
    """

    task: str
    steps: int
    batch_size: int
    learning_rate: float
    task_settings: dict[str, Any] = field(default_factory=dict)
    attention: str | list[str] = "cosformer"
    model: dict[str, Any] = field(default_factory=dict)
    initial: str | None = None
    accumulation: int = 1
    schedule: str = "cosine"
    warmup: int = 0
    end: float = 0.0
    power: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float | None = 1.0
    eval_every: int = 500
    eval_batch_size: int = 32
    patience: int | None = None
    save_every: int = 500
    save_total_limit: int = 2
    log_every: int = 20
    seed: int = 0
    precision: str = "fp32"
    compile: bool = False
    compile_backend: str = "inductor"
    cuda_graph: bool = False
    gradient_checkpointing: bool = False
    shard: bool = False
    sequence_parallel: int = 1
    device: str = "auto"
    data: str = "auto"
    group_by_length: bool = False
    workers: int = 0
    recipe: str | None = None
    scale: str | None = None

    def __post_init__(self) -> None:
        values = vars(self)
        for name, kind in _KINDS.items():
            if not isinstance(values[name], kind):
                raise TypeError(f"{name} must be {_WORDS[kind]}, but got {values[name]!r}.")
        for name, (least, most) in _WHOLE.items():
            value = values[name]
            if least:
                positive_int(name, value)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(f"{name} must be a whole number, but got {value!r}.")
            if value > most:
                raise ValueError(f"{name} must be at most {most:,}, but it is larger.")
        for name in ("learning_rate", "epsilon", "power"):
            positive(name, values[name])
        for name in ("compile", "cuda_graph", "gradient_checkpointing", "shard", "group_by_length"):
            flag(name, values[name])
        for name, known in _CHOICES.items():
            if values[name] not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, but got {values[name]!r}.")
        for name in ("beta1", "beta2", "end", "weight_decay"):
            if isinstance(values[name], bool) or not isinstance(values[name], int | float):
                raise TypeError(f"{name} must be a number, but got {values[name]!r}.")
        for name in ("beta1", "beta2", "end"):
            if not 0 <= values[name] < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, but got {values[name]}.")
        for name in ("warmup", "workers", "weight_decay", "seed"):
            if not 0 <= values[name] < math.inf:
                raise ValueError(f"{name} must not be negative, and finite, but got {values[name]}.")
        if self.max_grad_norm is not None:
            positive("max_grad_norm", self.max_grad_norm)
        if self.patience is not None:
            positive_int("patience", self.patience)
        if self.batch_size % self.accumulation:
            raise ValueError(
                f"batch_size must be a multiple of accumulation {self.accumulation}, "
                f"but got {self.batch_size}."
            )
        if self.compile and self.sequence_parallel > 1:
            raise ValueError(
                "compile must be false where sequence_parallel is above 1: what processes say to each other "
                "between layers cannot be compiled."
            )
        if self.cuda_graph and (self.gradient_checkpointing or self.shard or self.sequence_parallel > 1):
            raise ValueError(
                "cuda_graph must be false with gradient_checkpointing, shard or sequence_parallel: what they "
                "do between layers cannot be captured."
            )
        if "attention" in self.model:
            raise ValueError("model must not hold attention: it is a field of the run itself.")

    @property
    def mechanism(self) -> str:
        """The attention in words: of mixed layers each name once, `cosformer + softmax`."""
        names = [self.attention] if isinstance(self.attention, str) else self.attention
        return " + ".join(dict.fromkeys(names))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; `Run.from_dict` reads them."""
        return copy.deepcopy(dataclasses.asdict(self))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Run":
        if not isinstance(values, Mapping):
            raise ValueError(f"a run must be an object of its settings, but got {type(values).__name__}.")
        values = current_names(values)
        refuse_unknown(values)
        missing = [name for name in _REQUIRED if name not in values]
        if missing:
            raise ValueError(f"a run needs a value for {', '.join(missing)}.")
        return cls(**copy.deepcopy(dict(values)))

    def replace(self, **changes: Any) -> "Run":
        """The run with some fields changed."""
        return Run.from_dict({**self.to_dict(), **current_names(changes)})

    def differences(self, other: "Run") -> list[str]:
        """What changes the outcome: names of fields in which two runs differ."""
        return [
            f.name
            for f in dataclasses.fields(self)
            if f.name not in NON_SEMANTIC_FIELDS and getattr(self, f.name) != getattr(other, f.name)
        ]


def digest(run: Run) -> str:
    """A hash of all that changes the outcome: two runs with the same digest are the same experiment. Fields
    with their default do not count, so that a field added later changes no digest; renamed ones count under
    their first name."""
    required = {name: getattr(run, name) for name in _REQUIRED}
    names = (*required, *run.differences(Run(**required)))
    told = {_FIRST_NAMES.get(name, name): getattr(run, name) for name in names}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def refuse_unknown(values: Mapping[str, Any]) -> None:
    """Raises where a name is no field of a run."""
    known = [f.name for f in dataclasses.fields(Run)]
    for name in values:
        if name not in known:
            raise ValueError(f"a run has no field {name!r}; {meant_or_known(name, known, 'it has')}")
