"""Checks of a saved folder before transformers loads it and follows what its files ask for.

transformers runs Python code, fetches kernels, adapters and quantised weights, and asks a hub, where a
configuration names them. None of that is part of a model of this family: a folder that asks for it is refused
before transformers sees it. A folder is on this machine, unless the caller names a hub
(`local_files_only=False`).
"""

from pathlib import Path
from typing import Any

import torch

from cosformer.reading import json_object

GENERATION_CONFIG = "generation_config.json"
CONFIG, TOKENIZER_CONFIG, ADAPTER = "config.json", "tokenizer_config.json", "adapter_config.json"
# Nothing else is fetched from a repository of a hub: no code, no pickles.
_WANTED = ("*.json", "*.safetensors")
_OF_A_HUB = ("cache_dir", "force_download", "proxies", "revision", "token")
# Fields by which a configuration makes transformers load something else than the weights beside it.
_LEADING_ELSEWHERE = (
    "quantization_config", "attn_implementation", "_attn_implementation", "_attn_implementation_internal",
    "experts_implementation", "_experts_implementation", "_experts_implementation_internal",
    "transformers_weights", "configuration_files", "fusion_config", "distributed_config", "custom_pipelines",
)  # fmt: skip


def local_folder(given: Any, options: dict[str, Any]) -> Path:
    """The folder that holds a saved model or tokenizer. Options that only choose where files come from are
    taken out of `options`, and permission to run code is refused."""
    if options.pop("trust_remote_code", None):
        raise ValueError("trust_remote_code must not be True: code from a saved folder is never run.")
    of_a_hub = {name: options.pop(name) for name in _OF_A_HUB if name in options}
    named = options.pop("local_files_only", None) is False
    inner = options.pop("subfolder", "")
    try:
        folder = Path(given)
        there = folder.exists()
    except (ValueError, OSError):  # not a valid file name
        there = False
    if not there:
        if not named:
            raise FileNotFoundError(
                f"there is no folder {str(given)!r}: models are read from folders of this machine. To ask a "
                "hub for a repository of that name, pass local_files_only=False."
            )
        from huggingface_hub import snapshot_download

        found = {name: value for name, value in of_a_hub.items() if value is not None}
        folder = Path(snapshot_download(str(given), allow_patterns=list(_WANTED), **found))
    return checked(folder / inner)


def checked(folder: Path) -> Path:
    """The folder, if nothing in it leads to code or to files elsewhere."""
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {str(folder)!r}: {folder} is a file.")
    if (folder / ADAPTER).exists():
        raise ValueError(
            f"{folder} has {ADAPTER}: it changes another model, which it names, and adapters are not read. "
            "Save the changed model itself."
        )
    if (folder / CONFIG).exists():
        refuse_leading_elsewhere(json_object(folder / CONFIG, "Copy the folder again."), folder / CONFIG)
    if (folder / GENERATION_CONFIG).exists():
        json_object(folder / GENERATION_CONFIG, "Copy the folder again.")
    if (folder / TOKENIZER_CONFIG).exists():
        refuse_code(
            json_object(folder / TOKENIZER_CONFIG, "Copy the folder again."), folder / TOKENIZER_CONFIG
        )
    return folder


def refuse_code(saved: dict[str, Any], where: object) -> None:
    if saved.get("auto_map"):
        raise ValueError(
            f"{where} names code of its own (auto_map), which is never run: remove the field, if the model "
            "is one of cosformer.models."
        )


def refuse_leading_elsewhere(saved: dict[str, Any], where: object = "the configuration") -> None:
    """Raises for a saved configuration that makes transformers run code, or load other files."""
    refuse_code(saved, where)
    for name in _LEADING_ELSEWHERE:
        if saved.get(name) is not None:
            raise ValueError(
                f"{where} has {name}, by which something else than the weights beside it would be loaded: "
                "models of this family have no such field. Remove it."
            )
    for name in ("dtype", "torch_dtype"):
        given = saved.get(name)
        found = getattr(torch, given.removeprefix("torch."), None) if isinstance(given, str) else given
        if given is not None and not (isinstance(found, torch.dtype) and found.is_floating_point):
            raise ValueError(f"{where} has {name} {given!r}, which is no floating-point type (float32, say).")
