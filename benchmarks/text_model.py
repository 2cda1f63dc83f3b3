"""The paper's Table 5: steps of the byte-level text model against the length of the texts.

Training and inference, time and memory, for every attention:

    python -m benchmarks.text_model                                        # on a GPU
    python -m benchmarks.text_model --device cpu --rows softmax,ours --out try

The model is that of the recipe `text` at scale small, a step has the same number of tokens at every length,
and nothing is compiled. Softmax is PyTorch's, cuDNN's kernel on a GPU.
"""

import gc
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import machine
from benchmarks.attention_operator import device_for, folder_for
from benchmarks.evidence_plan import parts
from benchmarks.record import header
from benchmarks.terminal import Parser, Progress, plain
from cosformer import attention
from cosformer.atomic import write_json
from cosformer.models import CosformerConfig, CosformerForSequenceClassification
from cosformer.report.sections.planned import OURS, WINDOWS
from cosformer.report.sections.text_model import FORMAT, document, table
from cosformer.report.write import write_beside
from cosformer.training import recipes

PHASES = ("training", "inference")
VOCABULARY, LABELS = 257, 2
LENGTHS = {"cuda": "1024,4096,16384,65536", "cpu": "256,1024"}
TOKENS = {"cuda": 2**18, "cpu": 2**11}
# cuDNN's where it can serve a call.
KERNELS = [
    SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH,
]  # fmt: skip
_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")


def model(row: str, length: int) -> Any:
    chosen, own = parts("text", row, 4)
    run = recipes.build("text", scale="small", attention=chosen, model=own)
    torch.manual_seed(0)
    return CosformerForSequenceClassification(
        CosformerConfig.paper(
            vocab_size=VOCABULARY, max_position_embeddings=length, num_labels=LABELS,
            **{**run.model, "attention": run.attention, "dropout": 0.0},
        )
    )  # fmt: skip


def measure(row: str, length: int, tokens: int, steps: int, device: torch.device) -> list[dict[str, Any]]:
    """A figure for each phase; where memory does not suffice, that is what it says."""
    net = model(row, length).to(device)
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=device.type == "cuda")
    ids = torch.randint(1, VOCABULARY, (max(1, tokens // length), length), device=device)
    labels = torch.randint(LABELS, (len(ids),), device=device)

    def forward() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            loss: torch.Tensor = net(input_ids=ids, labels=labels).loss
        return loss

    def train() -> torch.Tensor:
        loss = forward()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        return loss.detach()

    def infer() -> torch.Tensor:
        with torch.inference_mode():
            return forward()

    found = []
    for phase, work in zip(PHASES, (train, infer), strict=True):
        net.train(phase == "training")
        figures: dict[str, Any] = {"row": row, "length": length, "phase": phase, "texts": len(ids)}
        try:
            found.append(figures | timed(work, device, steps))
        except RuntimeError as error:
            if not any(words in str(error).lower() for words in _MEMORY):
                raise
            found.append(figures | {"failed": "out of memory"})
            optimiser.zero_grad()
    return found


def timed(work: Any, device: torch.device, steps: int) -> dict[str, Any]:
    """The median of single steps, after two that are not counted; and the most memory, with the model and the
    moments of its optimiser."""
    if not work().isfinite():
        raise ArithmeticError("the loss of the first step is not finite.")
    work()
    machine.wait(device)
    if device.type == "cuda":
        gc.collect()
        torch.cuda.reset_peak_memory_stats(device)
    samples = []
    for _ in range(steps):
        began = time.perf_counter()
        work()
        machine.wait(device)
        samples.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return {"step_s": median(samples), "peak_memory_bytes": peak}


def main() -> None:
    rows = tuple(dict.fromkeys(("softmax", "cosformer", WINDOWS, OURS, *attention.names())))
    p = Parser(prog="python -m benchmarks.text_model", description=__doc__.splitlines()[0])
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument(
        "--rows", default=",".join(rows), help="attentions, with commas between them (default: all)"
    )
    p.add_argument(
        "--lengths",
        help=f"with commas between them (default: {LENGTHS['cuda']} on a GPU, {LENGTHS['cpu']} elsewhere)",
    )
    p.add_argument(
        "--tokens",
        type=int,
        help=f"of a step, at every length (default: {TOKENS['cuda']} on a GPU, {TOKENS['cpu']} elsewhere)",
    )
    p.add_argument("--steps", type=int, default=4, help="that are timed (default: 4)")
    p.add_argument("--minutes", type=float, default=5.0, help="after which no case is begun (default: 5)")
    p.add_argument("--out", type=Path, default=machine.ROOT / "benchmarks" / "reports")
    args = p.parse_args()
    device = device_for(p, args.device)
    wanted = args.rows.split(",")
    if unknown := [row for row in wanted if row not in rows]:
        p.error(f"--rows has no {unknown[0]!r}; there are {', '.join(rows)}")
    words = args.lengths or LENGTHS[device.type]
    tokens = TOKENS[device.type] if args.tokens is None else args.tokens
    try:
        lengths = sorted({int(n) for n in words.split(",")})
    except ValueError:
        p.error(f"--lengths must be numbers with commas between them, got {words!r}")
    if min(*lengths, tokens, args.steps) < 1:
        p.error("--lengths, --tokens and --steps must be positive")
    folder_for(p, args.out)
    data = header(FORMAT, device) | {
        "settings": {"tokens": tokens, "lengths": lengths, "steps": args.steps, "rows": wanted},
        "measured": [],
    }
    path = args.out / f"text-model-{device.type}-{data['date'][:10].replace('-', '')}.json"
    until = time.monotonic() + 60 * args.minutes
    cases, lost = [(length, row) for length in lengths for row in wanted], set()
    progress = Progress()
    progress.start(len(cases))
    with sdpa_kernel(KERNELS, set_priority=True) if device.type == "cuda" else nullcontext():
        for length, row in cases:
            progress.step(f"{row}, {length:,} tokens")
            if time.monotonic() > until:
                break
            if row in lost:  # shorter texts were too much already
                found = [{"row": row, "length": length, "phase": x, "failed": "not tried"} for x in PHASES]
            else:
                found = measure(row, length, tokens, args.steps, device)
                if all("failed" in x for x in found):
                    lost.add(row)
            data["measured"] += found
            write_json(path, data)
            if device.type == "cuda":
                torch.cuda.empty_cache()
    progress.end()
    write_beside(document(data), path)
    for phase in PHASES:
        shown = table(data, phase)
        print(plain(shown.header, shown.rows), end="\n\n")
    print(path.with_suffix(".md"))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nStopped; what was measured is kept.")
