"""cosFormer attention at work on this machine, in about a minute: the linear form equals the
quadratic one, and costs a fraction of softmax attention. `make demo` runs this."""

import os.path
import sys

# Run as a file, this folder would come first on the path, and its operator.py would pass for the
# standard library's.
if not __package__:
    _here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [os.path.dirname(_here)] + [p for p in sys.path if os.path.abspath(p or ".") != _here]

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine, memory
from benchmarks.contenders import MODES, Contender, Shape, Work, find, operator
from benchmarks.gate import errors_of
from benchmarks.plot import draw
from benchmarks.record import new_record
from benchmarks.report import disturbance, machine_words, shape_words
from benchmarks.targets import Results
from benchmarks.terminal import Parser, Progress, plain, seconds, size, times
from benchmarks.timing import Case, race

LENGTHS = [1024, 2048, 4096, 8192, 16384]
EXACT_AT = 1000
PLOT = Path("cosformer-demo.png")


def exactness(shape: Shape) -> str:
    """The linear form in two precisions against the quadratic one in float64."""
    linear = Contender("linear", "linear", operator("chunked"))
    quadratic = Contender("quadratic", "quadratic", operator("reference"))
    rows = []
    for dtype in (torch.float64, torch.float32):
        for mode in MODES:
            inputs = replace(shape, length=EXACT_AT, dtype=dtype).inputs()
            q, k, v, grad = (x.double() for x in inputs)
            true = Work(quadratic, (q, k, v, grad), mode, memory.PHASE)()
            value, *gradients = errors_of(Work(linear, inputs, mode, memory.PHASE)(), true)
            rows.append((mode, str(dtype).removeprefix("torch."), f"{value:.0e}", f"{max(gradients):.0e}"))
    return plain(("", "dtype", "values", "gradients"), rows)


def compare(shape: Shape, lengths: list[int], progress: Progress) -> dict[str, Any]:
    """Time and memory of the operator and of softmax attention, causal, forward and backward."""
    contenders = [c for c in find(shape)[0] if c.name in ("cosformer", "sdpa")]
    cases = [Case(c, replace(shape, length=t), "causal", memory.PHASE) for t in lengths for c in contenders]
    data = new_record(shape, lengths, contenders, {})
    others = machine.Others()
    data["timings"] = race(cases, seconds=0.5, progress=progress, rounds=2)
    data["others_share"] = others.share()
    data["memory"] = memory.measure_all(cases, progress)
    return data


def comparison(data: dict[str, Any]) -> str:
    results = Results(data)
    rows = []
    for t in data["settings"]["lengths"]:
        ours, softmax = (results.time(name, "causal", t) or 0.0 for name in ("cosformer", "sdpa"))
        extra = [results.extra(name, "causal", t) for name in ("cosformer", "sdpa")]
        sizes = ["-" if x is None else size(x) for x in extra]
        rows.append((f"{t:,}", seconds(ours), seconds(softmax), times(softmax / ours), *sizes))
    return plain(("tokens", "cosFormer", "softmax", "faster", "memory: cosFormer", "softmax"), rows)


def main() -> None:
    p = Parser(prog="demo.py", description=__doc__)
    p.parse_args()
    p.need_cosformer()
    shape = Shape(1, EXACT_AT, 8, 64, torch.float32, torch.device("cpu"))
    progress = Progress(every=5.0)

    print(
        f"1. Linear equals quadratic. Largest relative error against the paper's equation, T = {EXACT_AT}:\n"
    )
    print(exactness(shape), "\n", flush=True)

    data = new_record(shape, LENGTHS, [], {})
    print("2. What it costs, beside softmax attention (PyTorch's SDPA): causal, forward and backward,")
    print(f"   {shape_words(data['settings'])}, {machine_words(data)}:\n", flush=True)
    data = compare(shape, LENGTHS, progress)
    print(comparison(data), "\n")
    if disturbance(data):
        print(disturbance(data).replace("**", ""), "\n")

    try:
        draw(data, PLOT)
        print(f"3. The plot: {PLOT.resolve()}\n")
    except ImportError:
        print("3. No plot: matplotlib is not installed (pip install matplotlib).\n")
    print(
        "Next: call cosformer.cosformer_attention(q, k, v, causal=True) on your own [B, T, H, D] tensors; "
        "`make bench` writes the full report."
    )


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nStopped.")
