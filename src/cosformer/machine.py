"""Hardware, versions and commit that a figure was measured with."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cosformer.memory import physical

if TYPE_CHECKING:
    import torch

# The checkout of this file; an installed package has none.
CHECKOUT = Path(__file__).resolve().parents[2]
# Beside Python, torch and this library: what a figure may depend on, where it was used.
_OTHERS = {
    "transformers": "transformers", "accelerate": "accelerate", "triton": "triton",
    "fast_transformers": "fast-transformers",
}  # fmt: skip


def hardware(device: torch.device) -> dict[str, Any]:
    found: dict[str, Any] = {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": physical(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    if device.type == "cuda":
        import torch

        found["gpu"] = torch.cuda.get_device_name(device)
        found["gpu_memory_bytes"] = torch.cuda.get_device_properties(device).total_memory
    return found


def resident(field: str) -> int | None:
    """Bytes of this process: VmRSS (now) or VmHWM (the most since `forget_peak`); None where it is
    unknown."""
    said = _field("/proc/self/status", field)
    return int(said.split()[0]) * 1024 if said else None


def forget_peak(device: torch.device | None = None) -> bool:
    """The peak counts from here on: of tensors on a GPU, else VmHWM; False where the system does not do
    so."""
    if device is not None and device.type == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(device)
        return True
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_memory(device: torch.device) -> int:
    """Peak bytes since `forget_peak`: of tensors on a GPU; on a CPU of the process (since its start, where
    the peak cannot be reset)."""
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    most = resident("VmHWM")
    if most is not None:
        return most
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def versions() -> dict[str, str]:
    """Of Python, torch, this library, and of the others that are in use."""
    import torch

    import cosformer

    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cosformer": cosformer.__version__,
    }
    for module, name in _OTHERS.items():
        if module in sys.modules:
            found[name] = getattr(sys.modules[module], "__version__", "unknown")
    if torch.cuda.is_available():  # whose kernels are not imported before the first call
        for name in ("triton", "flash-linear-attention"):
            with suppress(importlib.metadata.PackageNotFoundError):
                found[name] = importlib.metadata.version(name)
    return found


def commit() -> dict[str, Any]:
    """The commit the figures belong to; `dirty` where files differ from it. A copy without its history is
    told by COSFORMER_COMMIT which commit it is of."""
    told = os.environ.get("COSFORMER_COMMIT")
    if told:
        return {"id": told, "dirty": None}
    # An installed copy may be inside another repository, whose commit says nothing about it.
    head = _git("rev-parse", "HEAD") if (CHECKOUT / "src" / "cosformer").is_dir() else None
    return {"id": head, "dirty": bool(_git("status", "--porcelain")) if head else None}


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=CHECKOUT, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _field(path: str, name: str) -> str | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)
