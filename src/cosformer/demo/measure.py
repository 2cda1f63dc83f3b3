"""Costs of a saved model: time and memory to read contexts of growing length, the time of the next token, and
the memory of a training step. Models are measured one after the other in a separate process
(`python -m cosformer.demo.measure SETTINGS FOLDER ...`), where nothing else uses memory."""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch

from cosformer import machine
from cosformer.demo.settings import Settings

# Freed memory has to be returned to the system at once, or the peak would count memory no longer in use.
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
NEXT = 8  # tokens decoded after a context
SLOW = 20.0  # seconds; a context that would take longer is not read


def measure(folders: list[Path], settings: Settings) -> list[dict[str, Any]]:
    """Of each: {contexts: [{length, seconds, memory_bytes, token_s, cache_bytes}], training_memory_bytes}."""
    source = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "cosformer.demo.measure", json.dumps(asdict(settings)), *map(str, folders)],
        env={**os.environ, **_ALLOCATOR, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RuntimeError(f"measuring {', '.join(map(str, folders))} failed: {said[-1]}")
    return [json.loads(line) for line in done.stdout.splitlines()[-len(folders) :]]


class Peak:
    """The most memory this process has held since `reset`, beyond what it held then; None where the system
    does not say."""

    def reset(self) -> None:
        self.before = machine.resident("VmRSS") if machine.forget_peak() else None

    def extra(self) -> int | None:
        most = machine.resident("VmHWM")
        return None if self.before is None or most is None else max(0, most - self.before)


def contexts(model: Any, lengths: tuple[int, ...]) -> list[dict[str, Any]]:
    """From short to long, until one would take longer than SLOW."""
    from cosformer.models import CosformerCache

    found: list[dict[str, Any]] = []
    peak = Peak()
    for length in lengths:
        if found and found[-1]["seconds"] * (length / found[-1]["length"]) ** 2 > SLOW:
            break
        ids = torch.randint(256, (1, length), generator=torch.Generator().manual_seed(0))
        samples = []
        for _ in range(3 if length <= 4096 else 1):
            cache = CosformerCache(model.config)
            peak.reset()
            began = time.perf_counter()
            logits = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            samples.append(time.perf_counter() - began)
        memory = peak.extra()
        token, steps = logits[:, -1:].argmax(-1), []
        for _ in range(NEXT):
            began = time.perf_counter()
            logits = model(token, past_key_values=cache, use_cache=True).logits
            steps.append(time.perf_counter() - began)
            token = logits[:, -1:].argmax(-1)
        found.append(
            {
                "length": length,
                "seconds": median(samples),
                "memory_bytes": memory,
                "token_s": median(steps),
                "cache_bytes": cache.nbytes,
            }
        )
    return found


def training_memory(model: Any, settings: Settings) -> int | None:
    """Peak of a forward and backward pass over a batch of the training."""
    run = settings.run("cosformer")  # the batch is the same for both
    batch = torch.randint(256, (run.batch_size, run.task_settings["length"]))
    peak = Peak()
    model(batch[:1], labels=batch[:1]).loss.backward()  # allocates the gradients, as in training
    peak.reset()
    model(batch, labels=batch).loss.backward()
    return peak.extra()


def costs(folder: str, settings: Settings) -> dict[str, Any]:
    from cosformer.models import CosformerForCausalLM, loading

    model = loading.load_model(CosformerForCausalLM, folder)
    model.train()
    training = training_memory(model, settings)
    model.zero_grad()
    model.eval()
    with torch.inference_mode():
        model(torch.zeros(1, 16, dtype=torch.int64))
        return {"contexts": contexts(model, tuple(settings.lengths)), "training_memory_bytes": training}


if __name__ == "__main__":
    chosen = Settings(**json.loads(sys.argv[1]))
    for each in sys.argv[2:]:
        print(json.dumps(costs(each, chosen)), flush=True)
