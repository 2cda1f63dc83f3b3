"""Which attention modules of a model run cosFormer, and why the others do not."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from cosformer.integrations.hosts import NAME, Settings, is_cross


@dataclass(frozen=True)
class AttentionUse:
    """One attention module: its name in the model, its class, whether it runs cosFormer, and as what
    (or why not)."""

    name: str
    module: str
    runs: bool
    detail: str

    def __str__(self) -> str:
        return f"{self.name} ({self.module}): {'cosFormer' if self.runs else 'not cosFormer'}, {self.detail}"


def describe(model: nn.Module, settings: Settings) -> list[AttentionUse]:
    return [
        AttentionUse(name, type(module).__name__, *_use(module, settings))
        for name, module in _attention_modules(model)
    ]


def _attention_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules called attention by their class that hold no other such module: the innermost ones."""
    for name, module in model.named_modules():
        if _is_attention(module) and not any(_is_attention(m) for m in module.modules() if m is not module):
            yield name, module


def _is_attention(module: nn.Module) -> bool:
    return "Attention" in type(module).__name__


def _use(module: nn.Module, settings: Settings) -> tuple[bool, str]:
    config = getattr(module, "config", None)
    if config is None or not _asks_the_interface(module):
        return False, "its class computes the attention itself and asks no attention interface"
    refusal = settings.refusal(config)
    if refusal is not None:
        return False, refusal
    chosen = getattr(config, "_attn_implementation", None)
    if chosen != NAME:
        return False, f"its configuration says attn_implementation={chosen!r}"
    kind = "cross-attention" if is_cross(module) else "self-attention"
    causal = "causal " if getattr(module, "is_causal", False) and not is_cross(module) else ""
    horizon, windows = settings.reach_of(module)
    reach = [] if horizon is None else [f"horizon {horizon:g}"]
    reach += [] if windows is None else [f"windows {', '.join(map(str, windows))}"]
    return True, f"{causal}{kind} with {' and '.join(reach)}"


def _asks_the_interface(module: nn.Module) -> bool:
    """Whether the source of the class chooses its attention function by name; transformers itself checks the
    same."""
    try:
        source = inspect.getsource(type(module).forward)
    except (OSError, TypeError):
        return False
    return "get_interface(" in source
