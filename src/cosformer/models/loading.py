"""Loads saved models and tokenizers for everything that uses them: generation, evaluation, training,
benchmarks.

`from_pretrained` initialises tensors that a file lacks, as transformers does, for users who change a model.
Here a file must have every tensor of the model, or it is refused.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from cosformer import memory
from cosformer.models import guard
from cosformer.models.config import CosformerConfig
from cosformer.reading import json_object

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
Stored = dict[str, tuple[list[int], str]]


def load_model(head: Any, folder: Any, *, dtype: Any = None) -> Any:
    """The model of a folder, of the class `head`, in evaluation mode. Tensors that are missing, left over, of
    another shape, or not finite, are refused in one sentence."""
    return _load(head, folder, None, dtype, body_only=False)[0]


def load_body(head: Any, folder: Any, *, config: CosformerConfig | None = None) -> tuple[Any, list[str]]:
    """As `load_model`, but the head may differ: tensors of it that the folder lacks are initialised. Also
    returns their names."""
    return _load(head, folder, config, None, body_only=True)


def load_tokenizer(folder: Any) -> Any:
    """The tokenizer of a folder, from tokenizer.json alone: no other class, and no code beside it."""
    from transformers import PreTrainedTokenizerFast

    folder = guard.local_folder(folder, {})
    if not (folder / "tokenizer.json").exists():
        raise FileNotFoundError(f"{folder} has no tokenizer.json: tokenizer.save_pretrained writes it.")
    try:
        return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    # `tokenizers` raises no more specific class of errors.
    except Exception as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"the tokenizer of {folder} is damaged ({said}): copy it again.") from error


def load_weights(model: nn.Module, path: Path) -> None:
    """Fills a model from one file, with every tensor it has and no other; what does not fit is refused before
    anything is changed."""
    with _opened(path) as file:
        stored = _stored(file)
        compare(model, stored, path)
        own, now = model.state_dict(), _names_now(model, stored)
        with torch.no_grad():
            for name in stored:
                into = own[now[name]]
                into.copy_(sharded_like(finite(name, file.get_tensor(name), path), into))


def sharded_like(x: Tensor, own: Tensor) -> Tensor:
    """x as `own` is: the shard of this process where `own` is a DTensor, else all of it."""
    if not isinstance(own, DTensor):
        return x
    # Every process has read the same tensor, so nothing is sent.
    return distribute_tensor(x.to(own.device), own.device_mesh, own.placements, src_data_rank=None)


def compare(model: nn.Module, stored: Stored, where: object, body: str = "") -> list[str]:
    """Raises unless a file has the tensors of a model, by name, shape and dtype. Where `body` is the prefix
    of a part of the model, only that part is required; returns the names of missing tensors."""
    own = model.state_dict(keep_vars=True)
    stored = {name: stored[then] for then, name in _names_now(model, stored).items()}
    if body and not any(name.startswith(body) for name in stored):  # saved without a head
        stored = {body + name: entry for name, entry in stored.items()}
    kept = {id(own[name]) for name in stored if name in own}
    missing = [name for name, x in own.items() if name not in stored and id(x) not in kept]  # tied ones are
    wanted = [name for name in missing if name.startswith(body)]
    if wanted:
        raise ValueError(f"{where} lacks {_first(wanted)}: damaged, or of another model. Copy it again.")
    extra = [name for name in stored if name not in own and name.startswith(body)]
    if extra:
        raise ValueError(
            f"{where} has {_first(extra)}, which the model has not: its configuration is of another model."
        )
    for name, (shape, kind) in stored.items():
        if name in own and list(own[name].shape) != shape:
            raise ValueError(
                f"the weights of {where} do not fit its configuration: {name} has shape {shape} in the file "
                f"and {list(own[name].shape)} in the model. Load them with the configuration they were saved "
                "with."
            )
        if name in own and own[name].is_floating_point() and kind not in _TYPES:
            raise ValueError(
                f"{where} cannot be the weights of the model: {name} holds {_name_of(kind)}, where real "
                f"numbers ({', '.join(_TYPES.values())}) are wanted."
            )
    return missing


def _names_now(model: nn.Module, stored: Iterable[str]) -> dict[str, str]:
    """The name in the model of each tensor of a file, which may have been saved by an earlier version. Where
    a file has one under both names, the earlier stays, as one that the model has not."""
    taken = set(stored)
    found = {name: name for name in stored}
    earlier: dict[str, str] = getattr(model, "earlier_names", {})
    for prefix, new in earlier.items():
        for name in taken:
            now = new + name.removeprefix(prefix)
            if name.startswith(prefix) and now not in taken:
                found[name] = now
    return found


def finite(name: str, x: Tensor, where: object) -> Tensor:
    if x.is_floating_point() and not x.isfinite().all():
        raise ValueError(
            f"{where} cannot be used: {name} holds NaN or infinite numbers, so the model was damaged or its "
            "training failed. Take an earlier checkpoint."
        )
    return x


def _load(
    head: Any, folder: Any, config: CosformerConfig | None, dtype: Any, *, body_only: bool
) -> tuple[Any, list[str]]:
    folder = guard.local_folder(folder, {})
    config = config or CosformerConfig.from_pretrained(folder)
    with torch.device("meta"):  # shapes only, before memory is allocated
        empty = head(config)
    memory.refuse_beyond(memory.of_model(empty), f"the model of {folder}")
    body = f"{head.base_model_prefix}." if body_only else ""
    drawn = compare(empty, _stored_in(folder), folder, body)
    model = head.from_pretrained(folder, config=config, **({} if dtype is None else {"dtype": dtype}))
    for name, x in model.state_dict().items():
        finite(name, x, folder)
    return model, drawn


def _stored_in(folder: Path) -> Stored:
    """Names, shapes and dtypes of all tensors of a folder."""
    found: Stored = {}
    for path in _files(folder):
        with _opened(path) as file:
            found |= _stored(file)
    return found


def _files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        raise FileNotFoundError(
            f"no {WEIGHTS} was found for {folder}: a saved model has one, and weights in another format "
            "are not read."
        )
    parts = json_object(folder / INDEX, "Copy it again.").get("weight_map")
    names = sorted(set(map(str, parts.values()))) if isinstance(parts, Mapping) else []
    if not names or any(Path(name).name != name or not name.endswith(".safetensors") for name in names):
        raise ValueError(f"{folder / INDEX} names no safetensors files of its own folder: copy it again.")
    return [folder / name for name in names]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there, or is no file: copy it again.")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or incomplete ({error}): copy it again.") from error


def _stored(file: Any) -> Stored:
    slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    return {name: (list(x.get_shape()), str(x.get_dtype())) for name, x in slices.items()}


def _name_of(kind: str) -> str:
    """I8 as int8."""
    return kind.replace("U", "uint").replace("I", "int").replace("BOOL", "truth values")


def _first(names: list[str]) -> str:
    return names[0] + (f" (and {len(names) - 1} more)" if len(names) > 1 else "")
