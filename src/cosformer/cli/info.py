"""`cosformer info`: versions, devices, which backends are available, and whether they compute correctly."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cosformer import __version__, machine
from cosformer.cli.parser import Parser
from cosformer.terminal import plain, seconds, size

if TYPE_CHECKING:
    from cosformer.check import Verdict

HELP = "versions, devices, backends and why each is or is not available"
DESCRIPTION = """Shows versions, devices and each backend of the operator, with the reason if it cannot be
used. --check computes small cases with every available backend, forward and backward, with and without
windows, and compares them with the paper's equation in float64. It takes a few seconds; on a GPU the first
call takes longer, to compile the kernels."""
EXAMPLES = """examples:
  cosformer info
  cosformer info --check          test each available backend (exit code 1 if one is wrong)
  cosformer info --json           the same as JSON
"""

# As in pyproject.toml: what each extra brings.
EXTRAS = {
    "models": (
        "accelerate", "matplotlib", "numpy", "pillow", "safetensors", "tokenizers", "tqdm", "transformers",
    ),
    "serve": ("fastapi", "openai", "pydantic", "starlette", "uvicorn"),
    "triton": ("triton",),
    "plots": ("matplotlib",),
}  # fmt: skip


def gather() -> dict[str, Any]:
    """Everything that `cosformer info` prints, as plain data."""
    import cosformer

    return packages() | {
        "devices": devices(),
        "backends": [asdict(backend) for backend in cosformer.backends()],
    }


def packages() -> dict[str, Any]:
    """What is installed: known without PyTorch."""
    missing = {name: [p for p in EXTRAS[name] if version(p) is None] for name in EXTRAS}
    return {"versions": versions(), "extras": missing}


def versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {
        "cosformer": __version__,
        "python": platform.python_version(),
        "torch": version("torch"),
    }
    return found | {p: version(p) for packages in EXTRAS.values() for p in packages}


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def devices() -> list[dict[str, Any]]:
    """The CPU, every CUDA GPU, and where there is none, why."""
    import torch

    cpu = machine.hardware(torch.device("cpu"))
    found: list[dict[str, Any]] = [
        {
            "device": "cpu",
            "name": cpu["cpu"],
            "cores": cpu["cores"],
            "threads": torch.get_num_threads(),
            "memory_bytes": cpu["memory_bytes"],
        }
    ]
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(i)
            found.append(
                {
                    "device": f"cuda:{i}",
                    "name": gpu.name,
                    "capability": f"{gpu.major}.{gpu.minor}",
                    "memory_bytes": gpu.total_memory,
                }
            )
    else:
        built = torch.version.cuda
        why = (
            "this build of PyTorch has no CUDA"
            if built is None and getattr(torch.version, "hip", None) is None
            else f"PyTorch is built for CUDA {built}, but finds no GPU or no driver"
        )
        found.append({"device": "cuda", "absent": why})
    return found


def words(data: dict[str, Any]) -> str:
    """`gather()`, or a part of it, as text."""
    return "\n".join(([*_packages(data), ""] if "versions" in data else []) + _machine(data))


def _packages(data: dict[str, Any]) -> list[str]:
    lines = ["Versions"]
    lines += [f"  {name:<14}{found or 'not installed'}" for name, found in data["versions"].items()]
    lines += ["", "Extras"]
    for name, missing in data["extras"].items():
        said = f'lacks {", ".join(missing)}: pip install ".[{name}]" in a clone' if missing else "complete"
        lines.append(f"  {name:<14}{said}")
    return lines


def _machine(data: dict[str, Any]) -> list[str]:
    lines = ["Devices"]
    for d in data["devices"]:
        if "absent" in d:
            lines.append(f"  {d['device']:<14}none: {d['absent']}")
            continue
        parts = [d["name"]]
        if "capability" in d:
            parts.append(f"compute capability {d['capability']}")
        else:
            parts.append(f"{d['cores']} cores, {d['threads']} threads")
        if d["memory_bytes"]:
            parts.append(size(d["memory_bytes"]))
        lines.append(f"  {d['device']:<14}{', '.join(parts)}")
    lines += ["", "Backends, fastest first"]
    for b in data["backends"]:
        state = "available" if b["available"] else f"not available: {b['reason']}"
        lines.append(f"  {b['name']:<14}{state} ({b['summary']})")
    return lines


def verdict_table(verdicts: list[Verdict]) -> str:
    rows = [
        [
            v.backend,
            v.device,
            "right" if v.passed else "WRONG",
            f"{v.cases}",
            f"{v.refused}" if v.refused else "",
            f"{v.worst:.2f}",
            seconds(v.seconds),
        ]
        for v in verdicts
    ]
    table = plain(("backend", "device", "", "cases", "left to others", "error / allowed", "time"), rows)
    failures = [f"{v.backend} on {v.device}: {v.failed}." for v in verdicts if not v.passed]
    return "\n".join([table, *failures])


def arguments(p: Parser) -> None:
    p.add_argument("--check", action="store_true", help="prove each available backend right, in seconds")
    p.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    if not args.json:  # printed before PyTorch is imported
        print("\n".join([*_packages(packages()), ""]), flush=True)
    data = gather()
    verdicts = []
    if args.check:
        from cosformer.check import check

        verdicts = check()
    if args.json:
        if args.check:
            data["check"] = [asdict(v) | {"passed": v.passed} for v in verdicts]
        print(json.dumps(data, indent=1))
    else:
        print("\n".join(_machine(data)))
        if args.check:
            print("\nCheck: values and gradients against the equation in float64")
            print(verdict_table(verdicts))
    return 0 if all(v.passed for v in verdicts) else 1
