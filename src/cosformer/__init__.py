"""cosFormer: exact linear attention with cosine re-weighting (Qin et al., ICLR 2022)."""

import importlib
from typing import TYPE_CHECKING, Any

from cosformer import registration

if TYPE_CHECKING:
    from cosformer import attention, positions
    from cosformer.nn import CosformerAttention
    from cosformer.ops import CosformerState, backends, cosformer_attention

__version__ = "0.1.0"
__all__ = [
    "CosformerAttention",
    "CosformerState",
    "attention",
    "backends",
    "cosformer_attention",
    "positions",
]

# Where each name is from; imported when it is first asked for, so that the command line can answer before
# PyTorch is there.
_HOMES = {
    "CosformerAttention": "cosformer.nn",
    "CosformerState": "cosformer.ops",
    "backends": "cosformer.ops",
    "cosformer_attention": "cosformer.ops",
}
_PACKAGES = (
    "attention", "check", "distributed", "integrations", "models", "nn", "ops", "positions",
    "random_features", "report", "tasks", "training",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"cosformer.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'cosformer' has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


registration.watch()
