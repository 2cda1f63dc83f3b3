"""The operator on a CUDA GPU, at the shapes its promises are stated for: B x T = 65,536 tokens, 16 heads.

Everybody is right before anybody is timed (gate.py). Times are medians of CUDA events around single
calls, the second-level cache cold. Calls are replayed from a CUDA graph where they can be captured: what
Python takes to start them is measured by itself. The floor is every input read once and every output
written once at the speed of a large copy. Run by `python -m benchmarks.operator --device cuda`.
"""

import importlib.util
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.contenders import MODES, PHASES, Contender, Shape, Work, authors_form, features, operator
from benchmarks.gate import admit
from benchmarks.terminal import Progress

TOKENS = 65536
HEADS = 16
LENGTHS = (512, 1024, 2048, 8192, 65536)
DIMS = (64, 128)
LONG = 2**20
SLOW = (
    "authors-compiled",
    "fla",
    "fla-relu",
    "cosformer[chunked]",
)  # timed at one length: others say the same
ONE_LENGTH = 2048


def softmax(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)


def _fla(wide: bool) -> Callable[[Tensor, Tensor, Tensor, bool], Tensor]:
    from fla.ops.linear_attn import chunk_linear_attn

    def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        if wide:
            q, k = (features(x.transpose(1, 2)).transpose(1, 2) for x in (q, k))
        else:
            q, k = q.relu(), k.relu()
        out = chunk_linear_attn(q, k, v, scale=1.0, normalize=True)
        return out[0] if isinstance(out, tuple) else out

    return attend


def contenders() -> tuple[list[Contender], dict[str, str]]:
    compiled = torch.compile(authors_form)
    found = [
        Contender("cosformer", "cosFormer", operator("auto")),
        Contender("cosformer[chunked]", "cosFormer chunked", operator("chunked")),
        Contender("sdpa", "softmax (cuDNN)", softmax, computes="softmax"),
        Contender("authors", "authors' einsum", authors_form, modes=("bidirectional",)),
        Contender("authors-compiled", "authors' einsum, compiled", compiled, modes=("bidirectional",)),
    ]
    if importlib.util.find_spec("fla") is None:
        return found, {"fla": "flash-linear-attention is not installed"}
    found += [
        # Its running sums are bfloat16 and eps is added: it is not held to our tolerance, and told so.
        Contender("fla", "fla, cosFormer features", _fla(True), computes="part", modes=("causal",)),
        Contender("fla-relu", "fla, ReLU only", _fla(False), computes="part", modes=("causal",)),
    ]
    return found, {}


class Clock:
    """Median of single calls, each after a write that empties the cache."""

    def __init__(self, device: torch.device):
        self.flush = torch.empty(2**26, dtype=torch.int32, device=device)

    def __call__(self, work: Callable[[], object], seconds: float = 0.12) -> float:
        work()
        work()
        torch.cuda.synchronize()
        times: list[float] = []
        while sum(times) < seconds * 1e3 and len(times) < 200:
            pairs = []
            for _ in range(10):
                self.flush.zero_()
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                work()
                end.record()
                pairs.append((begin, end))
            torch.cuda.synchronize()
            times += [a.elapsed_time(b) for a, b in pairs]
        return median(times) / 1e3


def bandwidth(clock: Clock, device: torch.device) -> float:
    """Bytes a second, read and written, of a large copy."""
    x = torch.empty(2**29, dtype=torch.float32, device=device).normal_()
    y = torch.empty_like(x)
    return 2 * x.nbytes / clock(lambda: y.copy_(x))


def graphed(work: Callable[[], object]) -> tuple[Callable[[], object], bool]:
    """A replay of the call and True, or the call itself and False where it cannot be captured."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            work()
    except RuntimeError:
        torch.cuda.synchronize()
        return work, False
    return graph.replay, True


def measure(shape: Shape, seconds: float, progress: Progress) -> dict[str, Any]:
    device, clock = shape.device, Clock(shape.device)
    everybody, absent = contenders()
    speed = bandwidth(clock, device)
    timings: list[dict[str, Any]] = []
    peaks: list[dict[str, Any]] = []
    verdicts: list[dict[str, Any]] = []
    cases: list[tuple[Contender, Shape]] = []
    for dim in DIMS:
        admitted, said = admit(everybody, replace(shape, dim=dim, batch=2))
        verdicts += [{**v, "dim": dim} for v in said]
        at = [replace(shape, batch=TOKENS // t, length=t, dim=dim) for t in LENGTHS]
        cases += [
            (c, x) for x in at for c in admitted if c.name not in SLOW or (x.length, dim) == (ONE_LENGTH, 64)
        ]
    cases.sort(key=lambda case: case[0].name in SLOW)
    progress.start(len(cases))
    for c, x in cases:
        progress.step(f"{c.title}, D = {x.dim}, T = {x.length:,}")
        for mode in (m for m in MODES if m in c.modes):
            case = {
                "contender": c.name,
                "mode": mode,
                "dim": x.dim,
                "length": x.length,
                "batch": x.batch,
            }
            inputs = x.inputs()
            try:
                for phase in PHASES:
                    call, captured = graphed(Work(c, inputs, mode, phase))
                    record = {**case, "phase": phase, "median_s": clock(call, seconds), "graph": captured}
                    timings.append(record)
                peaks.append({**case, "extra_bytes": _peak(Work(c, inputs, mode, PHASES[1]), device)})
            except (RuntimeError, torch.OutOfMemoryError) as error:
                timings.append({**case, "phase": PHASES[0], "skipped": str(error).splitlines()[0]})
    progress.end()
    return {
        "tokens": TOKENS,
        "bytes_per_second": speed,
        "absent": absent,
        "gate": verdicts,
        "timings": timings,
        "memory": peaks,
        "host": _host(shape),
        "growth": _growth(shape, clock),
        "decoding": _decoding(shape, clock, speed),
    }


def _peak(work: Work, device: torch.device) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    kept = work()
    torch.cuda.synchronize()
    del kept
    return torch.cuda.max_memory_allocated(device) - before


def _host(shape: Shape) -> dict[str, float]:
    """Seconds of Python and launches in a forward call that the GPU finishes sooner."""
    ours = Contender("cosformer", "cosFormer", operator("auto"))
    found = {}
    for mode in MODES:
        work = Work(ours, replace(shape, batch=1, length=2048, dim=64).inputs(), mode, "forward")
        for _ in range(20):
            work()
        samples = []
        for _ in range(50):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(10):
                work()
            torch.cuda.synchronize()
            samples.append((time.perf_counter() - start) / 10)
        found[mode] = median(samples)
    return found


def _growth(shape: Shape, clock: Clock) -> list[dict[str, float]]:
    """Time a token, forward and backward, of one causal row of 64K and of 1M tokens."""
    records = []
    ours = Contender("cosformer", "cosFormer", operator("auto"))
    for length in (TOKENS, LONG):
        inputs = replace(shape, batch=1, length=length, dim=64).inputs()
        took = clock(graphed(Work(ours, inputs, "causal", "forward+backward"))[0], 0.3)
        records.append({"length": length, "seconds_per_token": took / length})
    return records


def _decoding(shape: Shape, clock: Clock, speed: float) -> list[dict[str, float]]:
    """A step of 64 rows, in place and in a graph, against the time to read and write the states once."""
    from cosformer import CosformerState
    from cosformer.ops import decode_step

    records = []
    for position in (10, 1_000_000):
        state = CosformerState.zeros(64, HEADS, 64, horizon=2e6, device=shape.device)
        state.positions.fill_(position)
        q, k, v, _ = replace(shape, batch=64, length=1, dim=64).inputs()
        took = clock(graphed(partial(decode_step, q, k, v, state))[0])
        floor = 2 * (state.numerator.nbytes + state.denominator.nbytes) / speed
        records.append({"position": position, "median_s": took, "floor_s": floor})
    return records
