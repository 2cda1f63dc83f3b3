"""Heads with windows, timed beside the plain operator and two kinds of softmax; right before it is timed.

    python -m benchmarks.windows --device cuda --out benchmarks/reports/windows-cuda.json
    python -m benchmarks.windows --device cuda --dims 128 --only windows plain softmax
    python -m benchmarks.windows --device cpu

On a GPU: bfloat16, B x T = 65,536 tokens, 16 heads, calls replayed from CUDA graphs (gpu_clock.py),
against cuDNN's softmax and FlexAttention (compiled) with a sliding window of 256. On a CPU: float32, one row,
8 heads. Time a token for windows of every width says that the cost is linear for all of them.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.attention_operator import device_for
from benchmarks.contenders import MODES, PHASES, Contender, Shape, Work
from benchmarks.record import check_out, header
from benchmarks.terminal import Parser, Progress
from cosformer import CosformerState, cosformer_attention
from cosformer.atomic import write_json
from cosformer.cli.parser import number, positive_int
from cosformer.ops import backends, decode_step

FORMAT = "cosformer windows benchmark 1"
Windows = tuple[int | None, ...]
# Of the sixteen heads of a GPU's call, and of the eight of a CPU's.
MIXED: dict[str, Windows] = {
    "cuda": (*(2, 4, 8, 16, 64, 128, 256) * 2, None, None),
    "cpu": (2, 4, 8, 16, 64, 128, None, None),
}
WIDE = {"cuda": (1024, 4096), "cpu": (512, 8192)}
LENGTHS = {"cuda": (512, 2048, 8192, 65536), "cpu": (512, 4096, 16384)}
TOKENS = 65536
SLIDING = 256

Record = dict[str, Any]


def windowed(windows: Windows | None, backend: str) -> Callable[[Tensor, Tensor, Tensor, bool], Tensor]:
    def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        out: Tensor = cosformer_attention(q, k, v, causal=causal, windows=windows, backend=backend)
        return out

    return attend


def _softmax(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)


def _flex() -> Callable[[Tensor, Tensor, Tensor, bool], Tensor]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    # By default PyTorch compiles a function eight times, and then runs it uncompiled: a length, a mode and a
    # phase are one time each.
    torch._dynamo.config.recompile_limit = 64
    compiled, masks = torch.compile(flex_attention), {}

    def sees(causal: bool) -> Callable[..., Tensor]:
        def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            near = (i - j).abs() < SLIDING
            return near & (i >= j) if causal else near

        return visible

    def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        length = q.shape[1]
        if (length, causal) not in masks:
            masks[length, causal] = create_block_mask(sees(causal), None, None, length, length, q.device.type)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out: Any = compiled(q, k, v, block_mask=masks[length, causal])
        return out.transpose(1, 2)

    return attend


def contenders(device: str) -> list[Contender]:
    found = []
    names = ("auto", "triton") if device == "cuda" else ("auto",)
    for name in names:
        of = "" if name == "auto" else f"[{name}]"
        found.append(Contender(f"windows{of}", f"windows {MIXED[device]}", windowed(MIXED[device], name)))
        for w in WIDE[device]:
            windows = (w,) * len(MIXED[device])
            found.append(Contender(f"window {w}{of}", f"every head {w}", windowed(windows, name)))
        found.append(Contender(f"plain{of}", "no window", windowed(None, name)))
    if device == "cuda":
        from benchmarks.gpu_contenders import softmax

        found.append(Contender("softmax", "softmax (cuDNN)", softmax, computes="softmax"))
        found.append(Contender("flex", f"FlexAttention, window {SLIDING}", _flex(), computes="softmax"))
    else:
        found.append(Contender("softmax", "softmax (SDPA)", _softmax, computes="softmax", longest=4096))
    return found


def rows_wrong(got: Tensor, plain: Tensor, true: Tensor) -> float:
    """The largest error of a row, relative to that row and to the typical row, over what is allowed: four
    times the worst of plain arithmetic in the same type, and four roundings."""
    rows = true.norm(dim=-1)
    scale = rows + rows.square().mean().sqrt()
    ours, theirs = (((x.double() - true).norm(dim=-1) / scale).nan_to_num(torch.inf) for x in (got, plain))
    return float(ours.max() / (4 * theirs.max() + 4 * torch.finfo(got.dtype).eps))


def backends_of(found: list[Contender]) -> list[str]:
    """Those that serve the contenders with windows."""
    available = [b.name for b in backends() if b.available]
    named = {c.name.partition("[")[2].rstrip("]") or available[0] for c in found if c.computes != "softmax"}
    return [name for name in available if name in named]


def gate(shape: Shape, device: str, names: list[str], wide: bool = True) -> list[Record]:
    """The backends that are timed, against the equation in float64; values and gradients, row by row. On a
    GPU a call has as many tokens as those that are timed, for with fewer it would take other kernels, and
    the first and the last text of it are compared. `wide`: wide windows are timed, too."""
    verdicts = []
    cases: list[tuple[Windows, int]] = [(MIXED[device], 1000)]
    if wide:
        cases.append(((320,) * len(MIXED[device]), 1000))
    if wide and device == "cuda":  # the widths that are timed, and wide windows beside narrow ones
        cases += [((w,) * len(MIXED[device]), 2500) for w in WIDE[device]]
        cases.append((MIXED[device][: -len(WIDE[device]) or None] + WIDE[device], 2500))
    for name in names:
        for windows, length in cases:
            for mode in MODES:
                batch = -(-TOKENS // length) if device == "cuda" else 1
                inputs = replace(shape, batch=batch, length=length).inputs()
                some = [x.detach()[:: max(1, batch - 1)] for x in inputs]
                parts = []
                for backend, given in (
                    (name, inputs), ("reference", some), ("reference", [x.double() for x in some]),
                ):  # fmt: skip
                    q, k, v, grad = given
                    work = Work(
                        Contender(name, name, windowed(windows, backend)), (q, k, v, grad), mode, PHASES[1]
                    )
                    parts.append([x[:: max(1, batch - 1)] if given is inputs else x for x in work()])
                worst = max(rows_wrong(*x) for x in zip(*parts, strict=True))
                verdicts.append(
                    {"backend": name, "windows": windows, "mode": mode, "dim": shape.dim, "of_allowed": worst}
                )
                if not worst <= 1:
                    raise SystemExit(
                        f"{name} with windows {windows}, {mode}, is wrong by {worst:.2f} of what is allowed."
                    )
    return verdicts


def _cpu_clock(work: Callable[[], object], seconds: float) -> float:
    work()
    samples: list[float] = []
    until = time.perf_counter() + seconds
    while len(samples) < 5 or time.perf_counter() < until:
        start = time.perf_counter()
        work()
        samples.append(time.perf_counter() - start)
    return median(samples)


def measure(
    device: str, dims: tuple[int, ...], found: list[Contender], seconds: float,
    save: Callable[[Record], None], progress: Progress,
) -> Record:  # fmt: skip
    """`save` gets all that has been measured after each contender; ours come first."""
    where = torch.device(device)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    heads = len(MIXED[device])
    data: Record = {"gate": [], "timings": [], "decoding": [], "host": {}}
    clock: Any = _cpu_clock
    prepare: Callable[[Work], Callable[[], object]] = lambda work: work  # noqa: E731
    if device == "cuda":
        from benchmarks.gpu_clock import Clock, bandwidth, graphed

        clock = Clock(where)
        data["bytes_per_second"] = bandwidth(clock, where)
        prepare = lambda work: graphed(work)[0]  # noqa: E731
    shapes = {dim: Shape(1, 1000, heads, dim, dtype, where) for dim in dims}
    for shape in shapes.values():
        wide = any(c.name.startswith("window ") for c in found)
        data["gate"] += gate(shape, device, backends_of(found), wide)
    own = bool(backends_of(found))
    if own:
        data["decoding"] = decoding(where, dtype, clock, device, data.get("bytes_per_second"))
    if own and device == "cuda":
        data["host"] = host(Shape(1, 2048, heads, 64, dtype, where))
    cases = list(product(dims, LENGTHS[device], MODES, PHASES))
    progress.start(len(found) * len(cases))
    for c in found:
        for dim, length, mode, phase in cases:
            progress.step(f"{c.name}, D = {dim}, T = {length:,}, {mode}, {phase}")
            if c.longest is not None and length > c.longest:
                continue
            case = {"contender": c.name, "mode": mode, "phase": phase, "dim": dim, "length": length}
            batch = max(1, TOKENS // length) if device == "cuda" else 1
            at = replace(shapes[dim], batch=batch, length=length)
            try:
                took = clock(prepare(Work(c, at.inputs(), mode, phase)), seconds)
                data["timings"].append({**case, "batch": batch, "median_s": took})
            except (RuntimeError, torch.OutOfMemoryError) as error:
                data["timings"].append({**case, "skipped": str(error).splitlines()[0][:200]})
        save(data)
    progress.end()
    return data


def check_step(shape: Shape, windows: Windows) -> None:
    """The last token of a text by a step after the others, against the whole text at once."""
    given = [x.detach() for x in shape.inputs()[:3]]
    how: Any = {"causal": True, "horizon": 2e6, "windows": windows}
    attend: Any = cosformer_attention
    plain, true = (
        attend(*some, **how, backend="reference")[:, -1:] for some in (given, [x.double() for x in given])
    )
    _, state = attend(*(x[:, :-1] for x in given), **how, return_state=True)
    q, k, v = (x[:, -1:] for x in given)
    got, _ = decode_step(q, k, v, state)
    wrong = rows_wrong(got, plain, true)
    if not wrong <= 1:
        raise SystemExit(f"a step with windows {windows} is wrong by {wrong:.2f} of what is allowed.")


def decoding(
    where: torch.device, dtype: torch.dtype, clock: Any, device: str, speed: float | None
) -> list[Record]:
    """A step of one token, in place, at an early and a late position; compared with the equation first."""
    records, windows = [], MIXED[device]
    check_step(Shape(2, 300, len(windows), 64, dtype, where), windows)
    sizes = (64, 512) if device == "cuda" else (1,)
    for rows, position in product(sizes, (1000, 1_000_000)):
        state = CosformerState.zeros(
            rows, len(windows), 64, horizon=2e6, windows=windows, device=where, input_dtype=dtype
        )
        state.positions.fill_(position)
        q, k, v, _ = Shape(rows, 1, len(windows), 64, dtype, where).inputs()
        call: Any = partial(decode_step, q, k, v, state)
        if device == "cuda":
            from benchmarks.gpu_clock import graphed

            call = graphed(call)[0]
        record: Record = {
            "rows": rows, "position": position, "median_s": clock(call, 0.5), "bytes": state.nbytes
        }  # fmt: skip
        if speed is not None:
            record["floor_s"] = 2 * state.nbytes / speed
        records.append(record)
    return records


def host(shape: Shape) -> Record:
    """Seconds of Python and launches in a forward call; the GPU's own are not in them."""
    found = {}
    for mode in MODES:
        work = Work(Contender("w", "w", windowed(MIXED["cuda"], "auto")), shape.inputs(), mode, "forward")
        for _ in range(20):
            work()
        samples = []
        for _ in range(50):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(10):  # fewer launches than the queue of a stream holds
                work()
            samples.append((time.perf_counter() - start) / 10)
        found[mode] = median(samples)
    return found


def table(data: Record) -> str:
    lines = []
    rows = {(t["dim"], t["contender"]) for t in data["timings"]}
    lengths = sorted({t["length"] for t in data["timings"]})
    for mode in MODES:
        lines.append(f"{mode}: ms forward / forward+backward at T = {', '.join(map(str, lengths))}")
        for dim, name in sorted(rows):
            cells = []
            for length in lengths:
                of = {
                    t["phase"]: t.get("median_s")
                    for t in data["timings"]
                    if (t["dim"], t["contender"], t["mode"], t["length"]) == (dim, name, mode, length)
                }
                cells.append(" / ".join(f"{1e3 * of[p]:.3f}" if of.get(p) else "-" for p in PHASES))
            lines.append(f"  D={dim} {name:22s} " + "   ".join(cells))
    for d in data["decoding"]:
        floor = f", {d['median_s'] / d['floor_s']:.2f} of reading and writing it" if "floor_s" in d else ""
        lines.append(f"decoding {d['rows']} rows at {d['position']}: {1e3 * d['median_s']:.4f} ms{floor}")
    lines.append("host: " + ", ".join(f"{m} {1e3 * s:.3f} ms" for m, s in data["host"].items()))
    return "\n".join(lines)


def main(words: list[str] | None = None) -> None:
    p = Parser(prog="python -m benchmarks.windows", description=__doc__)
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    p.add_argument("--dims", type=positive_int, nargs="+", default=[64], help="head sizes (default: 64)")
    p.add_argument("--only", nargs="+", metavar="NAME", help="contenders (default: all): windows, plain, ...")
    p.add_argument("--seconds", type=number(0, 3600), default=0.1, help="for each case")
    p.add_argument("--out", type=Path, help="where the record goes (default: nowhere)")
    args = p.parse_args(words)
    where = device_for(p, args.device)
    check_out(p, args.out)
    found = {c.name: c for c in contenders(where.type)}
    for name in args.only or ():
        if name not in found:
            p.error(f"--only {name}: no contender has this name; there are {', '.join(found)}")
    chosen = [found[name] for name in args.only or found]
    data = header(FORMAT, where) | {"windows": MIXED[where.type]}

    def save(found: Record) -> None:
        if args.out is not None:
            write_json(args.out, data | found)

    measured = measure(where.type, tuple(args.dims), chosen, args.seconds, save, Progress())
    print(table(data | measured))


if __name__ == "__main__":
    main()
