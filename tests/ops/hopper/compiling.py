"""Compiles the Hopper kernels without a GPU, and reports what the assembler says of them."""

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from cosformer.ops.gpu.windows.launch import launch_backward, launch_forward, window_table
from cosformer.ops.hopper import band_run, run
from cosformer.ops.hopper.launch_plan import HopperLaunchPlan
from tests.ops.triton.compiling import TYPES


@dataclass
class Launch:
    """A kernel and the arguments it was launched with."""

    kernel: Any
    arguments: tuple[Any, ...]
    constants: tuple[Any, ...]

    @property
    def name(self) -> str:
        return self.kernel.__name__

    def compile(self) -> Any:
        signature, constants, attributes = {}, {}, {}
        arguments = (*self.arguments, *self.constants)
        for i, (p, x) in enumerate(zip(self.kernel.params, arguments, strict=True)):
            if p.is_constexpr or x is None:
                signature[p.name], constants[(i,)] = "constexpr", x
            elif isinstance(x, TensorDescriptor):
                signature[p.name] = f"tensordesc<bf16{x.block_shape},{x.layout!r}>"
            elif isinstance(x, torch.Tensor):
                signature[p.name] = "*" + TYPES[x.dtype]
                attributes[(i,)] = [["tt.divisibility", 16]]
            else:
                assert p.do_not_specialize, f"{self.name} would be compiled again for every {p.name}"
                signature[p.name] = "fp32" if isinstance(x, float) else "i32"
        source = GluonASTSource(self.kernel, signature, constants, attributes)
        return triton.compile(
            source, target=GPUTarget("cuda", 90, 32), options={"num_warps": self.constants[-1]}
        )


@dataclass
class Report:
    registers: int
    stack: int  # bytes a thread spills
    shared: int  # bytes
    products: int  # wgmma instructions
    waits: int  # for them

    @classmethod
    def of(cls, compiled: Any) -> "Report":
        with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
            f.write(compiled.asm["cubin"])
            f.flush()
            usage = _tool("cuobjdump", "-res-usage", f.name)
            code = _tool("cuobjdump", "-sass", f.name)
        found = {n: int(v) for n, v in re.findall(r"(REG|STACK):(\d+)", usage)}
        return cls(
            found["REG"], found["STACK"], compiled.metadata.shared, code.count("HGMMA"),
            code.count("WARPGROUP.DEPBAR"),
        )  # fmt: skip


def _tool(name: str, *arguments: str) -> str:
    path = Path(triton.__file__).parent / "backends/nvidia/bin" / name
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout


class Recorder(HopperLaunchPlan):
    """A plan that launches nothing."""

    def __init__(self, launches: list[Launch]):
        super().__init__((), torch.device("meta"), replayable=False)
        self.found = launches

    def launch_tma(
        self, kernel: Any, programs: int, arguments: tuple[Any, ...], constants: tuple[Any, ...]
    ) -> None:
        self.found.append(Launch(kernel, arguments, constants))

    def launch(self, *arguments: Any, **options: Any) -> None:
        """Portable kernels are compiled elsewhere (tests/ops/triton)."""


def record(
    dim: int, causal: bool, *, heads: int = 16, kv_heads: int = 16, batch: int = 32, length: int = 2048,
    masked: bool = False, packed: bool = False, state: bool = False,
) -> list[Launch]:  # fmt: skip
    """The kernels of a forward and a backward, in the order of their launches."""
    launches: list[Launch] = []
    q, g = (torch.empty(batch, length, heads, dim, dtype=torch.bfloat16, device="meta") for _ in range(2))
    k, v = (torch.empty(batch, length, kv_heads, dim, dtype=torch.bfloat16, device="meta") for _ in range(2))
    mask = torch.empty(batch, length, dtype=torch.bool, device="meta") if masked else None
    cu = torch.empty(9, dtype=torch.int64, device="meta") if packed else None
    carried: tuple[Any, ...] = (None, None, None)
    if state:
        rows = 8 if packed else batch
        shape = (rows, kv_heads, 2, dim, dim)
        carried = (
            torch.empty(shape, device="meta"), torch.empty(shape[:-1], device="meta"),
            torch.empty(rows, dtype=torch.int64, device="meta"),
        )  # fmt: skip
    settings = (causal, 0, 2.0 * length, 1e-6)
    run.forward(Recorder(launches), q, k, v, mask, cu, *carried, None, *settings, state, False)
    out, d, kept, *_ = run.forward(
        Recorder(launches), q, k, v, mask, cu, *carried, None, *settings, state, True
    )
    run.backward(
        Recorder(launches), g, *carried[:2], q, k, v, out, d, kept, mask, cu, *carried, None, None, None,
        *settings,
    )  # fmt: skip
    return launches


def record_windows(
    windows: tuple[int, ...], causal: bool, *, length: int = 2048, dim: int = 64,
    value_dim: int | None = None, group: int = 1, dtype: torch.dtype = torch.bfloat16, masked: bool = False,
    packed: bool = False, offset: int = 0, keys: int | None = None,
) -> list[Launch]:  # fmt: skip
    """As `record`, of heads with windows; 0 for a head without one."""
    batch, keys, value_dim = 1 if packed else 2, keys or length, value_dim or dim

    def empty(length: int, group: int, dim: int) -> torch.Tensor:
        return torch.empty(batch, length, group * len(windows), dim, dtype=dtype, device="meta")

    q, dq = (empty(length, group, dim) for _ in range(2))
    k, dk = (empty(keys, 1, dim) for _ in range(2))
    v, dv = (empty(keys, 1, value_dim) for _ in range(2))
    out, g = (empty(length, group, value_dim) for _ in range(2))
    den = torch.empty(batch, q.shape[2], length, device="meta")
    mask = torch.empty(batch, keys, dtype=torch.bool, device="meta") if masked else None
    cu = torch.empty(9, dtype=torch.int64, device="meta") if packed else None
    table = window_table(windows, q.device)
    settings = (mask, cu, table.narrow, table.wide, windows, causal, offset, 1e-6)
    launches: list[Launch] = []
    launch_forward(Recorder(launches), q, k, v, out, den, *settings)
    launch_backward(Recorder(launches), g, q, k, v, out, den, dq, dk, dv, *settings)
    return launches


# Head size and options of `record`: calls that launch all kernels without windows, in 86 variants.
CALLS: list[tuple[int, dict[str, Any]]] = [
    (64, {}),
    (128, {}),
    (64, {"batch": 1, "length": 8192}),
    (64, {"batch": 2, "length": 256}),
    (80, {"batch": 1, "length": 1000, "state": True}),
    (64, {"masked": True, "state": True, "kv_heads": 4}),
    (128, {"masked": True, "state": True, "kv_heads": 4}),
    (64, {"packed": True, "batch": 1}),
    (128, {"packed": True, "batch": 1}),
    (64, {"packed": True, "batch": 1, "kv_heads": 4, "length": 300}),
    (96, {"packed": True, "batch": 1, "state": True}),
]
# Options of `record_windows`: rows in which no tile leaves the window of 1,024 tokens, in one segment or in
# several, and rows in which one does; heads narrower than a tile, in groups and alone.
WINDOW_CALLS: list[dict[str, Any]] = [
    {"length": length, **how}
    for length in (200, 1024, 2048)
    for how in ({}, {"dim": 32, "value_dim": 48}, {"dim": 32, "value_dim": 48, "group": 4})
]


def write_machine_code(folder: Path) -> None:
    """A file for each variant of each kernel, with its constants and its instructions."""
    band_run.MIN_ROWS = {True: 0, False: 0}
    launches = [
        launch
        for causal in (True, False)
        for found in (
            *(record(dim, causal, **how) for dim, how in CALLS),
            *(record_windows((1024,) * 4, causal, **how) for how in WINDOW_CALLS),
            *(record_windows((2, 65, 66, 129, 130, 256), causal, group=group) for group in (1, 4)),
        )
        for launch in found
    ]
    folder.mkdir(parents=True, exist_ok=True)
    for launch in {(x.name, x.constants): x for x in launches}.values():
        with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
            f.write(launch.compile().asm["cubin"])
            f.flush()
            code = _tool("cuobjdump", "-sass", f.name)
        constants = "-".join(map(str, launch.constants))
        lines = re.sub(r"Function : .*", "", code[code.index("Function") :])
        (folder / f"{launch.name}-{constants}.sass").write_text(lines)


if __name__ == "__main__":
    write_machine_code(Path(sys.argv[1]))
