"""Recipes: complete runs as functions, one table of settings per task.

A recipe is a Python file with a function `build(scale, attention, **overrides)` that returns a `Run`. Those
of this project lie in `recipes/` of a checkout; a file of your own is given by its path.
"""

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.abc import SourceLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from cosformer.models import defaults
from cosformer.ops.checks import positive_int
from cosformer.recipe_files import check, folder, names
from cosformer.record_format import current_names
from cosformer.training.run import Run, refuse_unknown

__all__ = ["RECOMMENDED", "Table", "build", "load", "names"]
RECOMMENDED = "recommended"  # in place of an attention: the model that this library recommends
SCALES = ("tiny", "small", "paper")
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """The settings of a task: what all scales share, what each adds, and what a mechanism needs of its own.

    Settings are fields of `Run`; `task_settings` and `model` are merged field by field, later ones winning:
    shared, then the scale, then the mechanism (at all scales, then at this one), then the caller's.

    Args:
        task: a name from `cosformer.tasks.names()`.
        shared, tiny, small, paper: settings.
        attention: settings by mechanism.
        attention_at: settings by (mechanism, scale).
        recommended_at: scales at which a cosFormer is the model that this library recommends (`recommended`),
            by the sizes that the caller asks for.
    """

    task: str
    shared: Settings
    tiny: Settings
    small: Settings
    paper: Settings
    attention: Mapping[str, Settings] = field(default_factory=dict)
    attention_at: Mapping[tuple[str, str], Settings] = field(default_factory=dict)
    recommended_at: tuple[str, ...] = ()

    def build(self, scale: str = "small", attention: str | list[str] = "cosformer", **overrides: Any) -> Run:
        """A complete run. Where each layer has its own attention, no mechanism's settings are added. The
        attention "recommended" is that of `CosformerConfig()`, with its gate, norms and mixed layers;
        positions are the recipe's."""
        if scale not in SCALES:
            raise ValueError(f"scale must be one of {', '.join(SCALES)}, but got {scale!r}.")
        overrides = current_names(overrides)
        refuse_unknown(overrides)
        name = attention if isinstance(attention, str) else ""
        layers = (
            self.shared,
            getattr(self, scale),
            self.attention.get(name, {}),
            self.attention_at.get((name, scale), {}),
            self._recommended(scale, name, overrides.get("model", {})),
            overrides,
        )
        made: dict[str, Any] = {"task": self.task, "recipe": self.task, "scale": scale}
        made["attention"] = attention
        for layer in layers:
            for name, value in current_names(layer).items():
                merged = name in ("task_settings", "model")
                made[name] = {**made.get(name, {}), **value} if merged else value
        return Run.from_dict(made)

    def _recommended(self, scale: str, attention: str, asked: Settings) -> Settings:
        if attention != RECOMMENDED and (attention != "cosformer" or scale not in self.recommended_at):
            return {}
        own = {**self.shared.get("model", {}), **getattr(self, scale).get("model", {})}
        sizes = {"num_hidden_layers": 4, **own, **asked}
        for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"):
            if sizes.get(name) is not None:
                positive_int(name, sizes[name])
        width, layers = sizes["hidden_size"], sizes["num_hidden_layers"]
        heads = sizes.get("num_key_value_heads") or sizes["num_attention_heads"]
        model = defaults.recommended(width, heads, own.get("intermediate_size"))
        if attention == "cosformer":
            return {"model": model}
        if scale not in self.recommended_at:
            del model["position"]
        chosen, parameters = defaults.mixture(layers, heads)
        return {"attention": chosen, "model": {**model, "attention_parameters": parameters}}

    def variant(self, task: str, **changes: Settings) -> "Table":
        """The table of a sister task: other settings are laid over those of each part. `task_settings` are
        replaced where they are given, for they belong to a task; `model` is merged."""
        parts = {part: _laid(getattr(self, part), changes.get(part, {})) for part in ("shared", *SCALES)}
        return Table(
            task, **parts, attention=self.attention, attention_at=self.attention_at,
            recommended_at=self.recommended_at,
        )  # fmt: skip


def load(name_or_path: str | Path) -> ModuleType:
    """The module of a recipe, by name or by path."""
    check(name_or_path)
    path = Path(name_or_path)
    if path.suffix == ".py":
        return _checked(_from_file(path), str(path))
    root = str(folder().parent)
    if root not in sys.path:
        sys.path.append(root)
    return _checked(importlib.import_module(f"recipes.{name_or_path}"), str(name_or_path))


def build(
    name_or_path: str | Path, *, scale: str = "small", attention: str | list[str] = "cosformer",
    **overrides: Any,
) -> Run:  # fmt: skip
    """The run of a recipe."""
    made = load(name_or_path).build(scale=scale, attention=attention, **overrides)
    if not isinstance(made, Run):
        raise TypeError(
            f"build of recipe {str(name_or_path)!r} must return a Run, but got {type(made).__name__}."
        )
    return made


def _laid(below: Settings, above: Settings) -> dict[str, Any]:
    model = {**below.get("model", {}), **above.get("model", {})}
    return {**current_names(below), **current_names(above), **({"model": model} if model else {})}


def _from_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"recipe_{path.stem}", path)
    assert spec is not None
    assert isinstance(spec.loader, SourceLoader)
    try:
        spec.loader.get_code(spec.name)
    except ValueError as error:  # early 3.11 says so of a NUL, without the file
        raise SyntaxError(str(error)) from None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _checked(module: ModuleType, name: str) -> ModuleType:
    if not callable(getattr(module, "build", None)):
        raise ValueError(f"recipe {name} has no function build(scale, attention, **overrides).")
    return module
