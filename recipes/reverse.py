"""The encoder-decoder learns to reverse a sequence: the smallest task that needs cross-attention to look
at the right place. Trains, generates answers to sequences it has never seen, and appends a record.

    python -m recipes.reverse
"""

import argparse
import dataclasses
import datetime
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from benchmarks import machine
from cosformer.models import CosformerConfig, CosformerForConditionalGeneration

PAD, START, END, FIRST = 0, 1, 2, 3


@dataclass(frozen=True)
class Settings:
    """Everything the run depends on."""

    attention: str = "cosformer"
    seed: int = 0
    letters: int = 16
    shortest: int = 4
    longest: int = 12
    hidden_size: int = 128
    layers: int = 2
    heads: int = 4
    batch: int = 64
    steps: int = 1500
    learning_rate: float = 2e-3
    warmup: int = 200
    tested: int = 500


def pairs(settings: Settings, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Sources [count, longest] padded on the right, their mask, and the answers with an end token:

    source  c a b . .   mask  1 1 1 0 0   answer  b a c END
    """
    lengths = torch.randint(settings.shortest, settings.longest + 1, (count, 1), generator=generator)
    column = torch.arange(settings.longest)
    letters = torch.randint(FIRST, FIRST + settings.letters, (count, settings.longest), generator=generator)
    mask = column < lengths
    place = (lengths - 1 - column).clamp_min(0)
    answers = torch.full((count, settings.longest + 1), -100)
    answers[:, :-1] = letters.gather(1, place).masked_fill(~mask, -100)
    answers.scatter_(1, lengths, END)
    return letters.masked_fill(~mask, PAD), mask.long(), answers


def build(settings: Settings) -> CosformerForConditionalGeneration:
    torch.manual_seed(settings.seed)
    config = CosformerConfig(
        vocab_size=FIRST + settings.letters,
        hidden_size=settings.hidden_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        max_position_embeddings=32,
        attention=settings.attention,
        position="learned",
        pad_token_id=PAD,
        bos_token_id=START,
        eos_token_id=END,
        decoder_start_token_id=START,
    )
    return CosformerForConditionalGeneration(config)


def train(model: Any, settings: Settings, every: int = 250) -> list[tuple[int, float]]:
    """The mean loss of each stretch of steps, with the step it ends at."""
    generator = torch.Generator().manual_seed(settings.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.01)
    schedule = transformers.get_cosine_schedule_with_warmup(optimizer, settings.warmup, settings.steps)
    curve, recent = [], []
    model.train()
    for step in range(1, settings.steps + 1):
        ids, mask, labels = pairs(settings, settings.batch, generator)
        loss = model(ids, attention_mask=mask, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        recent.append(loss.item())
        if step % every == 0 or step == settings.steps:
            curve.append((step, sum(recent) / len(recent)))
            print(f"step {step:>5}  loss {curve[-1][1]:.4f}", flush=True)
            recent = []
    return curve


def exact(model: Any, settings: Settings) -> float:
    """The share of unseen sequences that generate() reverses without a single mistake."""
    generator = torch.Generator().manual_seed(settings.seed + 1_000_003)
    ids, mask, labels = pairs(settings, settings.tested, generator)
    model.eval()
    made = model.generate(ids, attention_mask=mask, max_new_tokens=settings.longest + 1, do_sample=False)[
        :, 1:
    ]
    made = torch.nn.functional.pad(made, (0, labels.shape[1] - made.shape[1]), value=PAD)
    return float(((made == labels) | (labels == -100)).all(1).double().mean())


def run(settings: Settings) -> dict[str, Any]:
    """Trains and tests; the record of it."""
    model = build(settings)
    began = time.perf_counter()
    curve = train(model, settings)
    seconds = time.perf_counter() - began
    return {
        "task": "reverse a sequence",
        "mechanism": settings.attention,
        "settings": dataclasses.asdict(settings),
        "seed": settings.seed,
        "metric": {"exact match of greedy generation, unseen sequences": exact(model, settings)},
        "loss": curve,
        "steps": settings.steps,
        "wall_time_s": round(seconds, 1),
        "tokens_per_s": round(
            settings.steps * settings.batch * (settings.shortest + settings.longest) / 2 / seconds
        ),
        "parameters": model.num_parameters(),
        "threads": torch.get_num_threads(),
        "hardware": machine.hardware(torch.device("cpu")),
        "versions": machine.versions() | {"transformers": transformers.__version__},
        "commit": machine.commit(),
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.reverse", description=__doc__.splitlines()[0])
    for field in dataclasses.fields(Settings):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default
        )
    parser.add_argument("--out", type=Path, default=machine.ROOT / "results" / "reverse.jsonl")
    args = vars(parser.parse_args())
    out = args.pop("out")
    record = run(Settings(**args))
    print(record["metric"])
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a") as file:
        file.write(json.dumps(record) + "\n")
    print(out)


if __name__ == "__main__":
    main()
