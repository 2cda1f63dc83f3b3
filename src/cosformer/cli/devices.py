"""--device and --dtype, as every command understands them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

from cosformer.cli.errors import UsageError
from cosformer.cli.parser import Parser, one_of

DTYPES = ("float32", "bfloat16", "float16")


def add(p: Parser) -> None:
    p.add_argument("--device", default="auto", help="auto (a GPU where there is one), cpu, cuda or cuda:N")
    p.add_argument(
        "--dtype",
        type=one_of(*DTYPES),
        default="float32",
        help="dtype of the weights: float32 (default), bfloat16 or float16",
    )


def choose(name: str) -> torch.device:
    """The device of that name, if it is here."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"--device {name} is not a device; auto, cpu, cuda or cuda:N is expected.") from None
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"--device {name} is not supported; auto, cpu, cuda or cuda:N is expected.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise UsageError(
            f"--device {name} is not here: PyTorch sees {found or 'no'} CUDA GPU{'s' * (found > 1)} "
            "(cosformer info says why)."
        )
    return device
