"""Block sizes of the kernels for windows: each right before it is timed, the fastest first.

    python -m benchmarks.window_sweep --out sweep.json

On a Hopper GPU: bfloat16, B x T = 65,536 tokens, 16 heads of 64. Kernels are compiled and compared with the
equation in float64 by several processes, then timed one after the other in CUDA graphs.
"""

import json
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.contenders import MODES, PHASES, Contender, Shape, Work
from benchmarks.gpu_clock import Clock, bandwidth, graphed
from benchmarks.terminal import Parser
from benchmarks.windows import MIXED, decoding, host, rows_wrong, windowed
from cosformer.cli.parser import positive_int
from cosformer.ops.gpu.launch_cache import PLAN_CACHE
from cosformer.ops.gpu.launch_plan import LaunchPlan
from cosformer.ops.gpu.windows import configs, launch
from cosformer.ops.gpu.windows.configs import Band, Near
from cosformer.ops.hopper import window_run

Record = dict[str, Any]
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
WINDOWS = tuple(w or 0 for w in MIXED["cuda"])
HEADS, DIM = len(WINDOWS), 64
KINDS = {"near": slice(0, 8), "band": slice(8, 14), "all": slice(0, 14)}  # of the narrow heads in their table
ALLOWED = 8e-3  # relative error of a head
# Own rows, others at a time, warps, stages, registers.
CANDIDATES = {
    "o": (
        (64, 64, 4, 2, 128), (64, 64, 4, 2), (64, 64, 4, 1), (64, 64, 4, 3), (64, 64, 4, 2, 168),
        (64, 64, 4, 1, 128), (64, 32, 4, 2, 128), (64, 32, 4, 3, 128), (64, 32, 4, 2, 96), (64, 128, 4, 2),
        (128, 64, 8, 2, 128), (128, 64, 8, 1, 128), (128, 32, 8, 2, 128), (128, 64, 8, 2), (128, 64, 4, 2),
    ),
    "dq": (
        (64, 32, 4, 2, 96), (64, 32, 4, 2, 128), (64, 32, 4, 3, 128), (64, 32, 4, 1, 96), (64, 64, 4, 2, 128),
        (64, 64, 4, 2), (64, 64, 4, 1, 128), (64, 64, 4, 2, 168), (128, 32, 8, 2, 128), (128, 64, 8, 2, 128),
        (128, 32, 8, 2, 96), (128, 64, 8, 1, 128),
    ),
    "keys": (
        (64, 32, 4, 2, 168), (64, 32, 4, 2), (64, 32, 4, 2, 128), (64, 32, 4, 3, 168), (64, 32, 4, 1, 168),
        (64, 64, 4, 2), (64, 64, 4, 1), (64, 64, 8, 2, 128), (128, 32, 8, 2, 128), (128, 64, 8, 2, 168),
        (128, 32, 8, 2, 168), (64, 64, 4, 2, 168),
    ),
}  # fmt: skip
# Own rows, warps, registers.
NEAR = {
    "o": ((64, 4), (64, 4, 128), (64, 4, 96), (64, 8), (128, 8), (128, 8, 128), (128, 4)),
    "dq": ((64, 4), (64, 4, 168), (64, 8), (64, 8, 128), (128, 8), (128, 8, 168)),
}
STEPS = tuple((numbers, warps) for numbers in (2**12, 2**13, 2**14) for warps in (4, 8, 16))


class Kernels(launch._Windowed):
    """Without the second launch, which has nothing to do here."""

    def _band(self, kernel: Any, tiles: int, spoilt: Any, *arguments: Any, **options: Any) -> None:
        if spoilt is None:
            spoilt = self.plan.empty((tiles,), torch.int32)
            self.plan.launch(kernel, tiles, spoilt, tiles, *arguments, MEND=0, **options)


class Data:
    def __init__(self, batch: int, length: int, causal: bool):
        torch.manual_seed(0)
        shape = (batch, length, HEADS, DIM)
        self.x = {n: torch.randn(shape, device=DEVICE, dtype=torch.bfloat16) for n in "qkvg"}
        self.made = {n: torch.full_like(self.x["q"], torch.nan) for n in ("out", "dq", "dk", "dv")}
        self.den = torch.full((batch, HEADS, length), torch.nan, device=DEVICE)
        self.inv_den, self.delta = torch.empty_like(self.den), torch.empty_like(self.den)
        self.causal = causal
        self.table = launch.window_table(WINDOWS, DEVICE)

    def kernels(self, backward: bool) -> Kernels:
        tensors = self.x | self.made
        if not backward:
            tensors = {n: tensors[n] for n in ("q", "k", "v", "out")}
        plan = LaunchPlan((), DEVICE, replayable=False)
        run = Kernels(plan, tensors, self.den, None, None, WINDOWS, self.causal, 0, 1e-6)
        run.inv_den, run.delta = self.inv_den, self.delta
        return run


def launcher(data: Data, what: str, kind: str, config: Band | Near) -> Callable[[], None]:
    """A call of one kernel for some of the narrow heads."""
    run, table = data.kernels(what != "o"), data.table.narrow
    assert table is not None
    part = table[KINDS[kind]]

    def call() -> None:
        configs.band = lambda *_: config  # type: ignore[assignment]
        configs.near = lambda *_: config  # type: ignore[assignment]
        if isinstance(config, Near):
            run.near(what, part)
        elif what == "keys":
            run.keys(part)
        else:
            run.queries(what, part)

    return call


@cache
def exact(causal: bool) -> tuple[Data, dict[str, Tensor]]:
    """Of narrow heads: data, and results in float64."""
    data = Data(1, 1000, causal)
    leaves = [data.x[n].double().requires_grad_() for n in "qkv"]
    windows = tuple(w or 1 for w in WINDOWS)
    from cosformer import cosformer_attention

    out = cosformer_attention(*leaves, windows=windows, causal=causal, backend="reference")
    grads = torch.autograd.grad(out, leaves, data.x["g"].double())
    return data, dict(zip(("out", "dq", "dk", "dv"), (out.detach(), *grads), strict=True))


def error(found: Tensor, truth: Tensor, heads: list[int]) -> float:
    """The largest of a head."""
    size, apart = (x[:, :, heads].square().sum((0, 1, 3)) for x in (truth, found.double() - truth))
    return float((apart / size).sqrt().nan_to_num(torch.inf).max())


def check(task: tuple[Any, ...]) -> tuple[tuple[Any, ...], float | str]:
    """Compiles a kernel; its largest error of a head."""
    try:
        return task, CHECKS[task[0]](*task[1:])
    except Exception as e:  # what does not compile is a result
        return task, f"{type(e).__name__}: {str(e)[:200]}"


def check_band(what: str, causal: bool, config: Band | Near) -> float:
    data, truth = exact(causal)
    kind = "near" if isinstance(config, Near) else "all"
    assert data.table.narrow is not None
    heads = data.table.narrow[KINDS[kind], 0].tolist()
    if what != "o":
        data.made["out"].copy_(truth["out"])
        good = Band(64, 32, 4, 2, 96)
        launcher(data, "o", "all", good)()  # denominators
        data.made["out"].copy_(truth["out"])
        if what == "keys":
            run = data.kernels(True)
            configs.band = lambda *_: good
            run.queries("dq", data.table.narrow)
            configs.band = lambda *_: config  # type: ignore[assignment]
            run.keys(data.table.narrow)
            return max(error(data.made[n], truth[n], heads) for n in ("dk", "dv"))
    launcher(data, what, kind, config)()
    names = ("out",) if what == "o" else ("dq", "dk", "dv") if isinstance(config, Near) else ("dq",)
    return max(error(data.made[n], truth[n], heads) for n in names)


def wide_on() -> None:
    window_run.USE_WINDOW_KERNELS = True


def check_wide(batch: int, length: int, windows: tuple[int | None, ...], causal: bool) -> float:
    """Row by row, over what is allowed: at most 1 is right. Values and gradients through the public call."""
    wide_on()
    inputs = Shape(batch, length, len(windows), DIM, torch.bfloat16, DEVICE).inputs()
    parts = []
    for backend, wide in (("hopper", False), ("reference", False), ("reference", True)):
        q, k, v, grad = (y.double() if wide else y for y in inputs)
        contender = Contender("", "", windowed(windows, backend))
        parts.append(Work(contender, (q, k, v, grad), MODES[0 if causal else 1], PHASES[1])())
    found = [rows_wrong(*x) for x in zip(*parts, strict=True)]
    print("wide", batch, length, windows[:3], "causal" if causal else "both ways",
          " ".join(f"{x:.3f}" for x in found), flush=True)  # fmt: skip
    return max(found)


def check_step(numbers: int, warps: int) -> float:
    """Tokens on the GPU and on the CPU; what is stored is the same to the bit."""
    from cosformer import CosformerState
    from cosformer.ops import decode_step

    launch.STEP_NUMBERS, launch.STEP_WARPS = numbers, warps
    PLAN_CACHE.clear()
    torch.manual_seed(0)
    windows, worst = MIXED["cuda"], 0.0
    states = [
        CosformerState.zeros(
            2, HEADS, DIM, horizon=999.0, windows=windows, device=d, input_dtype=torch.bfloat16
        )
        for d in (DEVICE, "cpu")
    ]
    for _ in range(300):
        x = [torch.randn(2, 1, HEADS, DIM, dtype=torch.bfloat16) for _ in range(3)]
        outs = []
        for i, state in enumerate(states):
            q, k, v = (y.to(state.numerator.device) for y in x)
            out, states[i] = decode_step(q, k, v, state)
            outs.append(out.cpu().double())
        worst = max(worst, float((outs[0] - outs[1]).norm() / outs[1].norm()))
    for name in ("keys", "values"):
        if not torch.equal(getattr(states[0], name).cpu(), getattr(states[1], name)):
            return torch.inf
    return worst


def check_shapes(windows: tuple[int | None, ...] | None, causal: bool) -> float:
    """Compiles what long rows need."""
    for length in (2048, 8192, 65536):
        shape = Shape(65536 // length, length, HEADS, DIM, torch.bfloat16, DEVICE)
        for phase in PHASES:
            contender = Contender("", "", windowed(windows, "auto"))
            Work(contender, shape.inputs(), MODES[0 if causal else 1], phase)()
    torch.cuda.synchronize()
    return 0.0


def use(best: dict[str, Any], near: bool) -> None:
    """The configurations that are given, in this process."""
    for what, config in best.items():
        if what.startswith("near"):
            configs._NEAR[what[5:], 2, 64] = config
        else:
            configs._BANDS[what, 2, 64] = config
    configs.band, configs.near = _ORIGINAL
    launch.USE_NEAR, launch.NEAR_ROWS = near, 0
    wide_on()
    PLAN_CACHE.clear()


_ORIGINAL = configs.band, configs.near


def check_call(best: tuple[tuple[str, Any], ...], near: bool, causal: bool) -> float:
    use(dict(best), near)
    return check_wide(1, 1000, MIXED["cuda"], causal)


CHECKS: dict[str, Callable[..., float]] = {
    "band": check_band, "near": check_band, "wide": check_wide, "step": check_step, "call": check_call,
    "shapes": check_shapes,
}  # fmt: skip


def run_checks(
    workers: int, tasks: list[tuple[Any, ...]], seconds: float
) -> dict[tuple[Any, ...], float | str]:
    """Each in one of so many processes. What hangs is ended with its process."""
    start = time.perf_counter()
    found: dict[tuple[Any, ...], float | str] = dict.fromkeys(tasks, "did not end")
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        for done in as_completed([pool.submit(check, t) for t in tasks], timeout=seconds):
            task, result = done.result()
            found[task] = result
    except (TimeoutError, BrokenProcessPool) as e:
        print("checks ended early:", repr(e))
    for process in list((pool._processes or {}).values()):
        process.kill()
    pool.shutdown(wait=False, cancel_futures=True)
    print(f"{len(tasks)} checks in {time.perf_counter() - start:.0f} s", flush=True)
    return found


def kernels(data: Record, clock: Clock, checked: dict[tuple[Any, ...], float | str]) -> dict[str, Any]:
    """Times of every configuration that is right; the fastest of each over both modes."""
    times: dict[tuple[str, str, Any], dict[bool, float]] = {}
    for causal in (True, False):
        at = Data(32, 2048, causal)
        launcher(at, "o", "all", Band(64, 32, 4, 2, 96))()
        launcher(at, "dq", "all", Band(64, 32, 4, 2, 96))()
        for (kind, *task), wrong in checked.items():
            if kind not in ("band", "near") or task[1] is not causal:
                continue
            what, _, config = task
            entry: Record = {
                "kind": kind,
                "what": what,
                "causal": causal,
                "config": repr(config),
                "error": wrong,
            }
            if isinstance(wrong, float) and wrong <= ALLOWED:
                for of in ("near",) if kind == "near" else ("near", "band", "all"):
                    call = graphed(launcher(at, what, of, config))[0]
                    entry[of] = clock(call, 0.015)
                    times.setdefault((what if kind == "band" else f"near {what}", of, config), {})[causal] = (
                        entry[of]
                    )
            data["kernels"].append(entry)
    best: dict[str, Any] = {}
    for name in ("o", "dq", "keys", "near o", "near dq"):
        for of in ("near",) if name.startswith("near") else ("near", "band", "all"):
            rows = sorted(
                (
                    (sum(t.values()), repr(config), config, t)
                    for (n, k, config), t in times.items()
                    if n == name and k == of and len(t) == 2
                ),
                key=lambda x: x[:2],
            )
            for _, text, _, t in rows[:3]:
                print(
                    f"{name:8s} {of:5s} causal {1e3 * t[True]:.4f} both ways {1e3 * t[False]:.4f} ms  {text}"
                )
            if rows and of == ("near" if name.startswith("near") else "band"):
                best[name] = rows[0][2]
    return best


def calls(data: Record, clock: Clock, label: str, lengths: tuple[int, ...], sets: dict[str, Any]) -> None:
    """Whole calls of the public function."""
    for name, windows in sets.items():
        for mode in MODES:
            cells = []
            for length in lengths:
                shape = Shape(65536 // length, length, HEADS, DIM, torch.bfloat16, DEVICE)
                for phase in PHASES:
                    work = Work(Contender("", "", windowed(windows, "auto")), shape.inputs(), mode, phase)
                    took = clock(graphed(work)[0], 0.03)
                    data["calls"].append(
                        {
                            "label": label,
                            "windows": name,
                            "mode": mode,
                            "length": length,
                            "phase": phase,
                            "s": took,
                        }
                    )
                    cells.append(f"{1e3 * took:.3f}")
            print(f"{label:10s} {name:8s} {mode:14s} T={lengths}: " + " ".join(cells), flush=True)


def profile(data: Record, label: str, windows: Any, mode: str) -> None:
    """Microseconds of each kernel of a forward and a backward."""
    shape = Shape(32, 2048, HEADS, DIM, torch.bfloat16, DEVICE)
    work = Work(Contender("", "", windowed(windows, "auto")), shape.inputs(), mode, PHASES[1])
    work()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as p:
        for _ in range(5):
            work()
        torch.cuda.synchronize()
    rows = [
        (e.key[:28], e.count // 5, round(e.self_device_time_total / 5, 1))
        for e in p.key_averages()
        if e.self_device_time_total > 5
    ]
    data["profile"][f"{label} {mode}"] = rows
    print(label, mode, rows, flush=True)


def steps(data: Record, clock: Clock) -> None:
    """A step of one token: whole, by tiles and warps, and its parts."""
    speed = data["bytes_per_second"]
    where = DEVICE
    for launch.STEP_NUMBERS, launch.STEP_WARPS in STEPS:
        PLAN_CACHE.clear()
        record = decoding(where, torch.bfloat16, clock, "cuda", speed)[-1]
        record |= {"numbers": launch.STEP_NUMBERS, "warps": launch.STEP_WARPS}
        data["steps"].append(record)
        took, floor = record["median_s"], record["floor_s"]
        print(f"step: {launch.STEP_NUMBERS}, {launch.STEP_WARPS} warps: {1e6 * took:.1f} us, "
              f"{took / floor:.2f} of reading and writing once", flush=True)  # fmt: skip
    x = torch.zeros(64, dtype=torch.int64, device="cuda")
    print(f"step: add_ alone {1e6 * clock(graphed(lambda: x.add_(1))[0], 0.05):.1f} us")
    from cosformer import CosformerState
    from cosformer.ops import decode_step

    for name, windows in (("windows alone", MIXED["cuda"][:14]), ("plain alone", (None, None))):
        for launch.STEP_NUMBERS, launch.STEP_WARPS in STEPS[:1] if None in windows else STEPS[::4]:
            PLAN_CACHE.clear()
            state = CosformerState.zeros(
                64, len(windows), 64, horizon=2e6 if None in windows else None, windows=windows, device=where,
                input_dtype=torch.bfloat16,
            )  # fmt: skip
            q, k, v, _ = Shape(64, 1, len(windows), 64, torch.bfloat16, where).inputs()
            took = clock(graphed(lambda: decode_step(q, k, v, state))[0], 0.05)  # noqa: B023
            data["steps"].append(
                {"part": name, "numbers": launch.STEP_NUMBERS, "warps": launch.STEP_WARPS, "s": took}
            )
            print(f"step: {name}, {launch.STEP_NUMBERS}, {launch.STEP_WARPS}: {1e6 * took:.1f} us, "
                  f"{2e6 * state.nbytes / speed:.1f} to read and write", flush=True)  # fmt: skip


def hosts(data: Record, clock: Clock) -> None:
    """Of a short call: wall time, and what the GPU needs of it."""
    shape = Shape(1, 2048, HEADS, DIM, torch.bfloat16, DEVICE)
    found = host(shape)
    for mode in MODES:
        work = Work(Contender("", "", windowed(MIXED["cuda"], "auto")), shape.inputs(), mode, PHASES[0])
        took = clock(graphed(work)[0], 0.03)
        data["host"][mode] = found[mode], took
        print(f"host, {mode}: {1e3 * found[mode]:.3f} ms, its graph {1e3 * took:.3f} ms", flush=True)


def main(words: list[str] | None = None) -> None:
    p = Parser(prog="python -m benchmarks.window_sweep", description=__doc__)
    p.add_argument("--workers", type=positive_int, default=14, help="processes that compile (default: 14)")
    p.add_argument("--out", type=Path, help="where the record goes (default: nowhere)")
    args = p.parse_args(words)
    start = time.perf_counter()
    data: Record = {"kernels": [], "calls": [], "steps": [], "profile": {}, "host": {}}

    def save(stage: str) -> None:
        print(f"{stage}: {time.perf_counter() - start:.0f} s", flush=True)
        if args.out is not None:
            args.out.write_text(json.dumps(data, indent=1, default=str) + "\n")

    wide = [
        ("wide", batch, length, (window,) * heads, causal)
        for causal in (True, False)
        for batch, length, window, heads in (
            (1, 1000, 320, 16), (1, 2500, 1024, 4), (3, 2500, 1024, 16), (1, 200, 512, 2), (1, 3000, 768, 8),
        )
    ]  # fmt: skip
    both = (True, False)
    tasks: list[tuple[Any, ...]] = [("shapes", w, c) for w in (None, MIXED["cuda"]) for c in both]
    tasks += [("step", *x) for x in STEPS]
    for causal in (True, False):
        tasks += [("near", what, causal, Near(*c)) for what, found in NEAR.items() for c in found]
        tasks += [("band", what, causal, Band(*c)) for what, found in CANDIDATES.items() for c in found]
    with ThreadPoolExecutor() as threads:  # apart: one that hangs, or spoils its process, spoils no other
        others = threads.submit(run_checks, args.workers, tasks, 150.0)
        of_wide = threads.submit(run_checks, len(wide), wide, 90.0)
        checked = others.result() | of_wide.result()
    data["checks"] = [(repr(t), x) for t, x in checked.items()]
    for t in wide:
        print(t[1:3], t[3][0], len(t[3]), t[4], checked[t])
    for t, x in checked.items():
        if t[0] != "wide" and not (isinstance(x, float) and x <= ALLOWED):
            print("WRONG", t, x)
    save("checked")
    clock = Clock(DEVICE)
    data["bytes_per_second"] = bandwidth(clock, DEVICE)
    best = kernels(data, clock, checked)
    data["best"] = {n: repr(x) for n, x in best.items()}
    print(data["best"])
    save("kernels")
    final = run_checks(4, [("call", tuple(best.items()), near, c) for near in both for c in both], 90.0)
    print(*final.values())
    data["final"] = [(repr(t), x) for t, x in final.items()]
    right = all(isinstance(x, float) and x <= 1 for x in (checked[t] for t in wide))
    for near in (False, True):
        use(best, near)
        hosts(data, clock)
        calls(data, clock, "near" if near else "bands", (2048,), {"mixed": MIXED["cuda"]})
    save("mixed")
    if right:
        sets = {str(w): (w,) * HEADS for w in (1024, 4096)} | {"plain": None}
        calls(data, clock, "wide", (2048, 8192, 65536), sets)
    save("wide")
    steps(data, clock)
    use(best, True)
    calls(data, clock, "near", (512, 8192, 65536), {"mixed": MIXED["cuda"]})
    save("calls")
    for mode in MODES:
        profile(data, "mixed", MIXED["cuda"], mode)
        if right:
            profile(data, "1024", (1024,) * HEADS, mode)
    save("end")


if __name__ == "__main__":
    main()
