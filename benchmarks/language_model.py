"""A training step of a language model of 12 layers and width 768 on long texts: tokens per second.

With cosFormer and with softmax (cuDNN on a GPU), compiled; and how much of a step is attention.

    python -m benchmarks.language_model                        # on a GPU
    python -m benchmarks.language_model --device cpu --layers 1 --length 256 --batch 1 --steps 2 --out try

The share of attention is its forward and backward, timed alone at the shapes of a step, times the layers.
"""

import argparse
import datetime
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import machine
from benchmarks.attention_operator import device_for, folder_for
from benchmarks.terminal import Parser, plain
from cosformer import attention
from cosformer.atomic import write_json
from cosformer.models import CosformerConfig, CosformerForCausalLM
from cosformer.report.document import Document
from cosformer.report.sections.training import language_model_document, steps
from cosformer.report.write import write_beside

FORMAT = "cosformer language model benchmark 1"
WIDTH, HEADS, VOCABULARY = 768, 12, 32_768


def clock(work: Callable[[], object], device: torch.device, steps: int) -> float:
    """The median of single calls, in seconds."""
    found = []
    for _ in range(steps):
        machine.wait(device)
        began = time.perf_counter()
        work()
        machine.wait(device)
        found.append(time.perf_counter() - began)
    return median(found)


def measure(name: str, args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    torch.manual_seed(0)
    config = CosformerConfig.paper(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=args.layers, num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH, max_position_embeddings=args.length, attention=name, use_cache=False,
    )  # fmt: skip
    model: Any = CosformerForCausalLM(config).to(device).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    call = torch.compile(model)
    tokens = torch.randint(VOCABULARY, (args.batch, args.length), device=device)
    losses = []

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            loss = call(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.detach())

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if device.type == "cuda" else nullcontext():
        for _ in range(3):
            step()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        took = clock(step, device, args.steps)
        peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
        alone = clock(attend(name, args, device), device, max(args.steps, 10))
    first, last = float(losses[0]), float(losses[-1])
    if not last < first:
        raise RuntimeError(f"the loss of {name} went from {first:.3f} to {last:.3f}: it is not learning.")
    return {
        "attention": name,
        "step_s": took,
        "tokens_per_s": args.batch * args.length / took,
        "attention_s": alone * args.layers,
        "attention_share": alone * args.layers / took,
        "peak_memory_bytes": peak,
        "parameters": sum(p.numel() for p in model.parameters()),
        "loss": [first, last],
    }


def attend(name: str, args: argparse.Namespace, device: torch.device) -> Callable[[], object]:
    """Forward and backward of one layer's attention, nothing else."""
    made = attention.fit(
        name, {}, num_heads=HEADS, num_kv_heads=HEADS, head_dim=WIDTH // HEADS, max_length=args.length,
        horizon=args.length,
    )  # fmt: skip
    shape = (args.batch, args.length, HEADS, WIDTH // HEADS)
    q, k, v, grad = (torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(4))
    inputs = [x.requires_grad_() for x in (q, k, v)]
    module: Any = made.to(device) if isinstance(made, torch.nn.Module) else made

    def work() -> object:
        return torch.autograd.grad(module(*inputs, causal=True), inputs, grad)

    for _ in range(3):
        work()
    return work


def document(data: dict[str, Any]) -> Document:
    return language_model_document(data, WIDTH, HEADS, VOCABULARY)


def main() -> None:
    parser = Parser(prog="python -m benchmarks.language_model", description=__doc__.splitlines()[0])
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    parser.add_argument("--attentions", default="cosformer,softmax", help="with commas between them")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--length", type=int, default=8192, help="tokens of a text")
    parser.add_argument("--batch", type=int, default=8, help="texts a step")
    parser.add_argument("--steps", type=int, default=20, help="that are timed")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=machine.ROOT / "benchmarks" / "reports")
    args = parser.parse_args()
    device = device_for(parser, args.device)
    for number in ("layers", "length", "batch", "steps"):
        if getattr(args, number) < 1:
            parser.error(f"--{number} must be positive, got {getattr(args, number)}")
    able = [n for n in attention.names() if attention.traits(n).causal]
    for name in args.attentions.split(","):
        if name not in able:
            parser.error(f"--attentions {name} is no causal attention; there are {', '.join(able)}")
    folder_for(parser, args.out)
    data: dict[str, Any] = {
        "format": FORMAT,
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "hardware": machine.hardware(device),
        "versions": machine.versions(),
        "commit": machine.commit(),
        "settings": {n: getattr(args, n) for n in ("layers", "length", "batch", "steps")},
        "measured": [],
    }
    path = args.out / f"language-model-{device.type}-{data['date'][:10].replace('-', '')}"
    for name in args.attentions.split(","):
        data["measured"].append(measure(name, args, device))
        write_json(path.with_suffix(".json"), data)
        write_beside(document(data), path.with_suffix(".json"))
    print(plain((table := steps(data)).header, table.rows), path.with_suffix(".md"), sep="\n")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nStopped; what was measured is kept.")
