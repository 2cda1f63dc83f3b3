"""Compiles the kernels of a call for a GPU that is not present, and reports what the assembler says of
them."""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TYPES = {
    torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.int64: "i64",
    torch.int32: "i32", torch.uint8: "u8",
}  # fmt: skip


@dataclass
class Launch:
    """A kernel and the arguments it was launched with."""

    kernel: Any
    args: dict[str, Any]

    def compile(self, capability: int) -> Any:
        params = self.kernel.params
        options = {n: self.args[n] for n in ("num_warps", "num_stages", "maxnreg") if n in self.args}
        signature, constants, attributes = {}, {}, {}
        for i, p in enumerate(params):
            x = self.args[p.name]
            if p.is_constexpr or x is None or (isinstance(x, int) and x == 1 and not p.do_not_specialize):
                signature[p.name], constants[(i,)] = "constexpr", x
                continue
            if isinstance(x, torch.Tensor):
                signature[p.name] = "*" + TYPES[x.dtype]
                aligned = True
            elif isinstance(x, float):
                signature[p.name], aligned = "fp32", False
            else:
                signature[p.name] = "i64" if abs(x) >= 2**31 else "i32"
                aligned = x % 16 == 0 and not p.do_not_specialize
            if aligned:
                attributes[(i,)] = [["tt.divisibility", 16]]
        source = ASTSource(self.kernel, signature, constants, attributes)
        return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


class Recorder:
    """Stands in for a kernel and records how it is launched."""

    def __init__(self, kernel: Any, launches: list[Launch]):
        self.kernel, self.launches, self.params = kernel, launches, kernel.params

    def __getitem__(self, grid: Any) -> Any:
        def launch(*args: Any, **more: Any) -> None:
            names = [p.name for p in self.kernel.params]
            self.launches.append(Launch(self.kernel, dict(zip(names, args, strict=False)) | more))

        return launch


def report(compiled: Any) -> dict[str, int]:
    """Registers, stack (spills) and shared memory."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        f.write(compiled.asm["cubin"])
        f.flush()
        said = subprocess.run([tool, "-res-usage", f.name], capture_output=True, text=True, check=True).stdout
    usage = {n.lower(): int(v) for n, v in re.findall(r"(REG|STACK):(\d+)", said)}
    return usage | {"shared": compiled.metadata.shared}
