"""Makes the models known to transformers and PEFT as soon as those are imported, and imports neither.

`import cosformer` is enough for `AutoModelForCausalLM.from_pretrained(folder)`: an import hook adds the
architecture to transformers' registry of configurations when that is loaded. The models themselves are
imported when a configuration needs them. No code of a saved folder is used.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODEL_TYPE = "cosformer"


class _OnDemand(dict[str, Any]):
    """The registered configurations, and ours, whose class is imported when it is first used."""

    def __getitem__(self, key: str) -> Any:
        if key == MODEL_TYPE and super().__getitem__(key) is None:
            importlib.import_module("cosformer.models")
        return super().__getitem__(key)

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return [(key, self[key]) for key in self]


def _name_configuration(module: ModuleType) -> None:
    """Adds our model type to the configurations of transformers, without importing its class."""
    mapping = module.CONFIG_MAPPING
    others = mapping._extra_content
    if MODEL_TYPE not in others:
        mapping._extra_content = _OnDemand({**others, MODEL_TYPE: None})


def _name_targets(module: ModuleType) -> None:
    """Adds target modules for PEFT's methods: those of Llama, whose layers have the same names."""
    for name, mapping in vars(module).items():
        if name.startswith("TRANSFORMERS_MODELS_TO_") and name.endswith("_MODULES_MAPPING"):
            targets = mapping.get("llama")
            if isinstance(targets, list) and all(target in LAYERS for target in targets):
                mapping.setdefault(MODEL_TYPE, list(targets))


LAYERS = ("q_proj", "k_proj", "v_proj", "up_proj", "down_proj")
AFTER: dict[str, Callable[[ModuleType], None]] = {
    "transformers.models.auto.configuration_auto": _name_configuration,
    "peft.utils.constants": _name_targets,
}


def name_classes(classes: dict[str, type]) -> None:
    """Adds classes to the module `transformers`, to both objects of it: it replaces itself in `sys.modules`
    while it is imported, and early importers keep the first object."""
    held = [getattr(module, "__dict__", {}).get("transformers") for module in list(sys.modules.values())]
    for found in (sys.modules["transformers"], *held):
        if isinstance(found, ModuleType) and found.__name__ == "transformers":
            for name, cls in classes.items():
                setattr(found, name, cls)


class _Watch(MetaPathFinder):
    """A meta path finder that runs a function after the other finders have loaded a module."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        then = AFTER.get(name)
        if then is None:
            return None
        for finder in sys.meta_path:
            found = None if finder is self else finder.find_spec(name, path, target)
            if found is not None and found.loader is not None:
                _then(found.loader, then)
                return found
        return None


def _then(loader: Any, then: Callable[[ModuleType], None]) -> None:
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        load(module)
        then(module)

    loader.exec_module = exec_module


def watch() -> None:
    """Starts watching imports; modules that are loaded already are handled at once."""
    if any(isinstance(finder, _Watch) for finder in sys.meta_path):
        return
    for name, then in AFTER.items():
        if name in sys.modules:
            then(sys.modules[name])
    sys.meta_path.insert(0, _Watch())
