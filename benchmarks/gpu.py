"""The operator on a CUDA GPU, at the shapes its promises are stated for: B x T = 65,536 tokens, 16 heads, and
single rows beyond that, up to a million tokens.

An implementation of cosFormer has to pass gate.py before it is timed; flash-linear-attention, which sums in
bfloat16, is timed with its error reported. Times are medians of CUDA events around single calls with a cold
L2 cache. Calls are replayed from a CUDA graph where they can be captured; the time that Python takes to
launch them is measured separately. The memory-bound limit is the time to read every input and write every
output once, at the bandwidth of a large copy. Run by `python -m benchmarks.attention_operator --device cuda`.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.contenders import (
    MODES,
    PHASES,
    Contender,
    Shape,
    Work,
    operator,
)
from benchmarks.gate import admit, compare, errors_of, note, roundings
from benchmarks.gpu_clock import Clock, bandwidth, graphed
from benchmarks.gpu_contenders import TUNED, TUNING, contenders
from benchmarks.terminal import Progress
from cosformer import CosformerState, cosformer_attention
from cosformer.ops import backends, decode_step

TOKENS = 65536
HEADS = 16
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536, 2**18, 2**20)
DIMS = (64, 128)
LONG = 2**20
ONE_LENGTH = 2048  # the only length of slow contenders whose time per token does not depend on it
ONCE = ("authors-compiled", "cosformer[chunked]")
# Synchronises with the GPU, which cannot be captured; after a failed capture, PyTorch frees no memory.
EAGER = ("cosformer[chunked]",)
FEW = (512, 2048, 8192, TOKENS, LONG)  # lengths for those that are tuned again for every batch size
PATIENCE = 1.5  # seconds: a call that is predicted to take longer is skipped
DOCUMENTS = 1000
CHECKED = 1000  # tokens, of masks, documents and grouped heads before they are timed
GROUP = 4  # query heads of a key head
VARIED = ((32, 2048), (1, TOKENS))  # batch and length for masks, documents and grouped heads

Record = dict[str, Any]
Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


def measure(
    shape: Shape,
    seconds: float,
    progress: Progress,
    save: Callable[[Record], None],
    done: Record | None = None,
) -> Record:
    """Everything, most important first; `save` is called with what there is after each part. `done`: what an
    earlier run saved before it was stopped; its parts are not measured again."""
    device, clock = shape.device, Clock(shape.device)
    all_contenders, absent = contenders()
    parts = [(c, dim) for dim in DIMS for c in all_contenders if c.name not in ONCE]
    parts += [(c, DIMS[0]) for c in all_contenders if c.name in ONCE]
    progress.start(len(parts) + 1)
    progress.step("masks, documents and grouped heads")
    if done is None:
        data: Record = {
            "tokens": TOKENS,
            "bytes_per_second": bandwidth(clock, device),
            "parts": [],
            "finished": False,
        }
        data |= {"gate": _right_first(shape), "timings": [], "memory": [], "variants": []}
        data |= {"host": _host(shape), "growth": _growth(shape, clock)}
        data["decoding"] = _decoding(shape, clock, data["bytes_per_second"])
        data["variants"] = _variants(shape, clock, seconds)
    else:
        data = done
    data["absent"] = absent
    data["planned"] = [{"contender": c.name, "dim": dim} for c, dim in parts]
    data["tuning"] = {c.name: TUNING for c in all_contenders if c.name in TUNED}
    save(data)
    there = {(p["contender"], p["dim"]) for p in data["parts"]}
    for c, dim in parts:
        progress.step(f"{c.title}, D = {dim}")
        if (c.name, dim) in there:
            continue
        at = replace(shape, dim=dim)
        # Those that tune themselves do so for one row anyway.
        admitted = _admitted(c, replace(at, batch=1 if c.name in TUNED else 2), data["gate"])
        if admitted is not None:
            for mode in (m for m in MODES if m in c.modes):
                timings, peaks = _against_length(admitted, at, mode, clock, seconds)
                data["timings"] += timings
                data["memory"] += peaks
        data["parts"].append({"contender": c.name, "dim": dim})
        save(data)
    progress.end()
    return data | {"finished": True}


def _admitted(c: Contender, shape: Shape, gate: list[Record]) -> Contender | None:
    """The contender in those of its forms that may be timed; every verdict goes to the gate's list."""
    right = {}
    for name, form in c.each_form().items():
        passed, said = admit([form], shape)
        gate += [{**v, "dim": shape.dim} | ({"form": name} if name else {}) for v in said]
        if passed:
            right[name] = form.attend
    return replace(c, forms=right if c.forms else {}) if right else None


def _against_length(
    c: Contender, shape: Shape, mode: str, clock: Clock, seconds: float
) -> tuple[list[Record], list[Record]]:
    timings: list[Record] = []
    peaks: list[Record] = []
    before: dict[str, tuple[int, float]] = {}  # pairs (or tokens) of the last length, and the time they took
    for length in (ONE_LENGTH,) if c.name in ONCE else FEW if c.name in TUNED else LENGTHS:
        x = replace(shape, batch=max(1, TOKENS // length), length=length)
        case = {"contender": c.name, "mode": mode, "dim": x.dim, "length": length, "batch": x.batch}
        inputs = x.inputs()
        much = x.batch * length * (length if c.computes == "softmax" else 1)
        for phase in PHASES:
            less, took = before.get(phase, (much, 0.0))
            expected = took * much / less
            if expected > PATIENCE:
                timings.append({**case, "phase": phase, "skipped": f"would take {expected:.0f} s"})
                continue
            try:
                found, fastest = _fastest(c, inputs, mode, phase, clock, seconds)
                timings.append({**case, "phase": phase, **found})
                before[phase] = (much, found["median_s"])
                if phase == PHASES[1]:
                    extra = _peak(Work(fastest, inputs, mode, phase), shape.device)
                    peaks.append({**case, "extra_bytes": extra})
            except (RuntimeError, torch.OutOfMemoryError, ImportError) as error:
                timings.append({**case, "phase": phase, "skipped": str(error).splitlines()[0]})
    return timings, peaks


def _fastest(
    c: Contender, inputs: Inputs, mode: str, phase: str, clock: Clock, seconds: float
) -> tuple[Record, Contender]:
    """The time of a contender's fastest form, which the record names, and that form. One that does not run
    at all is passed by, unless there is no other."""
    found: list[tuple[Record, Contender]] = []
    failed: list[Exception] = []
    for name, form in c.each_form().items():
        try:
            work = Work(form, inputs, mode, phase)
            call, captured = (work, False) if c.name in EAGER else graphed(work)
            took = {"median_s": clock(call, seconds), "graph": captured}
            del call, work  # a graph holds all that its calls need
        except (RuntimeError, ImportError) as error:
            failed.append(error)
            continue
        found.append((took | ({"form": name} if name else {}), form))
    if not found:
        raise failed[0]
    return min(found, key=lambda pair: pair[0]["median_s"])


def _attend(options: Record, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    out: Tensor = cosformer_attention(q, k, v, causal=causal, **options)
    return out


def _kinds(shape: Shape, documents: int) -> dict[str, tuple[Record, tuple[Tensor, Tensor, Tensor, Tensor]]]:
    """Options and inputs of a plain call, with a mask, with grouped heads, and of one row of documents."""
    at, length = replace(shape, dim=64), shape.length
    draw = torch.Generator(shape.device).manual_seed(1)
    mask = torch.rand(shape.batch, length, generator=draw, device=shape.device) > 0.1
    cuts = torch.randperm(length - 1, generator=draw, device=shape.device)[: documents - 1] + 1
    bounds = torch.cat((cuts.new_tensor([0]), cuts.sort().values, cuts.new_tensor([length]))).int()
    q, k, v, grad = at.inputs()
    few = tuple(x[:, :, : shape.heads // GROUP].contiguous() for x in (k, v))
    kinds: dict[str, Any] = {
        "plain": ({}, (q, k, v, grad)),
        "mask": ({"key_mask": mask}, (q, k, v, grad)),
        "grouped heads": ({}, (q, *few, grad)),
    }
    if shape.batch == 1:
        # No document may be longer than the horizon: nor is the row.
        kinds["documents"] = ({"cu_seqlens": bounds, "horizon": float(length)}, (q, k, v, grad))
    return kinds


def _right_first(shape: Shape) -> list[Record]:
    """Verdicts on what is timed of the operator alone, and no more if one of them is bad."""
    verdicts: list[Record] = []
    for kind, (options, inputs) in _kinds(replace(shape, batch=1, length=CHECKED), documents=20).items():
        name = f"cosformer, {kind}"
        verdict: Record = {"contender": name, "dim": 64, "verdict": "passed", "checks": []}
        judge = Contender("reference", "reference", partial(_attend, {**options, "backend": "reference"}))
        for mode in MODES:
            compare(verdict, Contender(name, name, partial(_attend, options)), judge, inputs, mode)
        verdicts.append(verdict)
    verdicts.append(_decodes(shape))
    for v in verdicts:
        if v["verdict"] != "passed":
            raise SystemExit(f"{v['contender']} is wrong, so nothing is timed: {v['reason']}.")
    return verdicts


def _decodes(shape: Shape) -> Record:
    """The verdict on 40 steps of `decode_step`, compared with one causal call over all tokens."""
    q, k, v, _ = replace(shape, batch=4, length=40, dim=64).inputs()
    state = CosformerState.zeros(4, shape.heads, 64, horizon=2e6, device=shape.device)
    steps = []
    for t in range(q.shape[1]):
        out, state = decode_step(q[:, t : t + 1], k[:, t : t + 1], v[:, t : t + 1], state)
        steps.append(out)
    settings: Record = {"causal": True, "horizon": 2e6, "backend": "reference"}
    true = cosformer_attention(*(x.double() for x in (q, k, v)), **settings)
    (plain,) = errors_of((cosformer_attention(q, k, v, **settings),), (true,))
    (error,) = errors_of((torch.cat(steps, 1),), (true,))
    verdict: Record = {"contender": "cosformer, decoding", "dim": 64, "verdict": "passed", "checks": []}
    note(verdict, "causal", q.shape[1], "out", error, 2 * plain + roundings(q.dtype))
    return verdict


def _variants(shape: Shape, clock: Clock, seconds: float) -> list[Record]:
    """What masks, documents and grouped heads cost, beside the same tensors without them."""
    records = []
    for batch, length in VARIED:
        for kind, (options, inputs) in _kinds(replace(shape, batch=batch, length=length), DOCUMENTS).items():
            for mode in MODES:
                for phase in PHASES:
                    work = Work(Contender(kind, kind, partial(_attend, options)), inputs, mode, phase)
                    call, captured = graphed(work)
                    case = {"kind": kind, "mode": mode, "phase": phase, "batch": batch, "length": length}
                    records.append({**case, "median_s": clock(call, seconds), "graph": captured})
    return records


def _peak(work: Work, device: torch.device) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    kept = work()
    torch.cuda.synchronize()
    del kept
    return torch.cuda.max_memory_allocated(device) - before


def _host(shape: Shape) -> dict[str, dict[str, float]]:
    """Seconds of Python and launches in a forward call that the GPU finishes sooner; by backend and mode."""
    found: dict[str, dict[str, float]] = {}
    for name in (b.name for b in backends() if b.available and b.name in ("hopper", "triton")):
        ours, found[name] = Contender(name, name, operator(name)), {}
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
            found[name][mode] = median(samples)
    return found


def _growth(shape: Shape, clock: Clock) -> dict[str, list[dict[str, float]]]:
    """Time a token, forward and backward, of one causal row of 64K and of 1M tokens; by backend."""
    found: dict[str, list[dict[str, float]]] = {}
    for name in ("auto", "triton"):
        ours, found[name] = Contender(name, name, operator(name)), []
        for length in (TOKENS, LONG):
            inputs = replace(shape, batch=1, length=length, dim=64).inputs()
            took = clock(graphed(Work(ours, inputs, "causal", PHASES[1]))[0], 0.3)
            found[name].append({"length": length, "seconds_per_token": took / length})
    return found


def _decoding(shape: Shape, clock: Clock, speed: float) -> list[dict[str, float]]:
    """A step of 64 rows, in place and in a graph, against the time to read and write the states once."""
    records = []
    for position in (10, 1_000_000):
        state = CosformerState.zeros(64, HEADS, 64, horizon=2e6, device=shape.device)
        state.positions.fill_(position)
        q, k, v, _ = replace(shape, batch=64, length=1, dim=64).inputs()
        took = clock(graphed(partial(decode_step, q, k, v, state))[0])
        floor = 2 * (state.numerator.nbytes + state.denominator.nbytes) / speed
        records.append({"position": position, "median_s": took, "floor_s": floor})
    return records
