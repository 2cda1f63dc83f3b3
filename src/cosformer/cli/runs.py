"""Shared by `train` and `compare`: a recipe with settings from the command line, and the messages when
training ends early."""

import argparse
import json
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cosformer import recipe_files
from cosformer.cli.errors import Stopped, UsageError, full_disk, needs_models, writable_file, writable_folder
from cosformer.cli.parser import Parser, did_you_mean, one_of

SCALES = ("tiny", "small", "paper")
SETTINGS = """Settings are fields of the run: steps=100, seed=1, precision=bf16, model.hidden_size=64,
task_settings.length=512; `cosformer train RECIPE --print_config` shows them all."""
NESTED = ("model", "task_settings")


class Failed(Exception):
    """The run itself failed, and not because of the command line: exit code 1."""


def add(p: Parser) -> None:
    p.add_argument("recipe", help="name of a recipe (see `cosformer data`), or path of a recipe file")
    settings = p.add_argument(
        "settings", nargs="*", metavar="NAME=VALUE", help="settings to change in the recipe"
    )
    settings.required = False  # or argparse would list them as missing together with the recipe
    p.add_argument(
        "--scale",
        type=one_of(*SCALES),
        default="small",
        help="tiny (up to a minute on a CPU), small (minutes on an H200, much longer on a CPU; default) or "
        "paper (the published sizes)",
    )
    p.add_argument(
        "--results", type=Path, help="file that the record is appended to (default: results/<task>.jsonl)"
    )
    p.add_argument("--fresh", action="store_true", help="start again instead of continuing from a checkpoint")


def overrides(words: Sequence[str]) -> dict[str, Any]:
    """NAME=VALUE words as settings; a dot leads into `model` or `task_settings`. Values are JSON or words."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise UsageError(f"{word!r} is no setting; NAME=VALUE is expected, for example steps=100.")
        try:
            value = json.loads(text)
        except ValueError:
            value = {"True": True, "False": False, "None": None}.get(text, text)
        outer, dot, inner = name.partition(".")
        if dot and outer not in NESTED:
            raise UsageError(f"{outer!r} has no settings of its own: only model and task_settings have.")
        if name in NESTED and not isinstance(value, dict):
            example = {"model": "hidden_size=64", "task_settings": "length=512"}[name]
            raise UsageError(
                f"{word!r} is no setting: {name} has its own; write {name}.{example}, for example."
            )
        if dot:
            found.setdefault(outer, {})[inner] = value
        else:
            found[name] = value
    return found


def build(
    recipe: str,
    scale: str,
    attention: str,
    words: Sequence[str],
    option: str = "--attention",
    *,
    needs_data: bool = True,
) -> Any:
    """The run of a recipe; its errors are UsageErrors. `option` is the one that names the attention. Without
    `needs_data`, missing data are no error: stderr says that the model's settings were not checked."""
    settings = overrides(words)
    try:
        recipe_files.check(recipe)
    except (ValueError, FileNotFoundError) as error:
        raise UsageError(str(error)) from None
    with needs_models():
        from cosformer.attention import names
        from cosformer.tasks import DataError
        from cosformer.tasks import build as build_task
        from cosformer.training import model
        from cosformer.training.recipes import RECOMMENDED
    for name, instead in (("scale", "--scale"), ("attention", option)):
        if name in settings:
            raise UsageError(f"the {name} is chosen by an option: write {instead} {settings[name]}.")
    if "recipe" in settings:
        raise UsageError(f"the recipe is the first word, {recipe}, and no setting: leave out recipe=.")
    try:
        run = _of_recipe(recipe, scale=scale, attention=attention, **settings)
        known = (*names(), RECOMMENDED)
        if attention not in known:  # a recipe may bring its own
            hint = did_you_mean(attention, known) or f" There are {', '.join(known)}."
            raise UsageError(f"{option}: {attention!r} is not known.{hint}")
        if run.compile and run.compile_backend not in (backends := _compilers()):
            raise ValueError(
                f"compile_backend must be one of {', '.join(backends)}, but got {run.compile_backend!r}."
            )
        # Wrong settings of the task or of the model raise here, and not in the middle of a run.
        model.initial(run)
        model.refuse_unknown(run)
        try:
            model.refuse_what_does_not_fit(run, build_task(run.task, **run.task_settings))
        except DataError as error:
            if needs_data:
                raise
            print(f"The settings of the model were not checked: {error}", file=sys.stderr)
    except (ValueError, TypeError, FileNotFoundError) as error:
        raise UsageError(str(error)) from None
    except (SyntaxError, ImportError) as error:
        raise UsageError(f"recipe {recipe} cannot be read: {error}.") from None
    if run.warmup > run.steps:
        share = run.steps / run.warmup
        print(
            f"warmup={run.warmup:,} is not over after steps={run.steps:,}: the learning rate comes to "
            f"{share:.0%} of its highest. A smaller warmup=N changes that.",
            file=sys.stderr,
        )
    return run


def add_recipe(p: Parser) -> None:
    p.add_argument(
        "--recipe",
        type=Path,
        metavar="FILE.py",
        help="your recipe file, where the run has a task or an attention of that file: it is run first",
    )


def load_recipe(path: Path | None) -> None:
    """Runs a recipe file for what it registers; its errors are UsageErrors."""
    if path is None:
        return
    from cosformer.training import recipes

    try:
        _reported(str(path), lambda: recipes.load(path))
    except (ValueError, FileNotFoundError) as error:
        raise UsageError(str(error)) from None
    except (SyntaxError, ImportError) as error:
        raise UsageError(f"recipe {path} cannot be read: {error}.") from None


def recipe_hint(error: Exception) -> str:
    """What helps where a folder needs code that only its recipe file brings."""
    unknown = str(error).startswith(("task must be one of", "attention must be one of"))
    return " What a recipe file of yours brings is known with --recipe FILE.py." if unknown else ""


def _of_recipe(recipe: str, **settings: Any) -> Any:
    """The run that a recipe builds."""
    from cosformer.training import recipes

    return _reported(recipe, lambda: recipes.build(recipe, **settings))


def _reported(recipe: str, work: Callable[[], Any]) -> Any:
    """A recipe is a program of the user: its errors are reported with their line."""
    try:
        return work()
    except (ValueError, FileNotFoundError, SyntaxError, ImportError):
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((f.lineno for f in reversed(frames) if Path(f.filename).name == Path(recipe).name), None)
        if line is None and not recipe.endswith(".py"):
            raise
        said = ": ".join(filter(None, [type(error).__name__, str(error).partition("\n")[0]])).rstrip(".")
        raise UsageError(
            f"recipe {recipe} failed{'' if line is None else f' in line {line}'}: {said}."
        ) from None


def _compilers() -> list[str]:
    """Backends of `torch.compile` that are here and that the trainer knows."""
    import torch
    from accelerate.utils import DynamoBackend  # type: ignore[import-untyped]

    named = {backend.value.lower() for backend in DynamoBackend}
    return [name for name in torch.compiler.list_backends(exclude_tags=()) if name in named]


def train(run: Any, folder: Path, args: argparse.Namespace, again: Sequence[str]) -> dict[str, Any]:
    """Trains one run, or continues it; `again` is the command that does so."""
    from cosformer.peers import PeerFailed
    from cosformer.training import Diverged, Interrupted, checkpoint
    from cosformer.training import train as train_
    from cosformer.training.main import device_of

    try:
        device_of(run, trains=True)
    except RuntimeError as error:
        raise UsageError(str(error)) from None
    if not finished(folder, args):  # else nothing has to be written
        writable_file("--results", results(run.task, args))
        writable_folder("--folder", folder)
    try:
        record: dict[str, Any] = train_(run, folder, resume=not args.fresh, results=args.results)
    except Interrupted as stopped:
        raise Stopped(f"{stopped}. Kept in {folder}; continue with: {shlex.join(again)}") from None
    except KeyboardInterrupt:
        raise Stopped(
            f"stopped at once; checkpoints in {folder} are whole. Continue with: {shlex.join(again)}"
        ) from None
    except (Diverged, PeerFailed) as error:
        raise Failed(str(error)) from None
    except (ValueError, FileExistsError, FileNotFoundError) as error:
        raise UsageError(
            str(error).replace("(resume=False; --fresh on the command line)", "(--fresh)")
        ) from None
    except Exception as error:
        if not full_disk(error):
            raise
        last = max(checkpoint.steps(folder), default=None)
        kept = f"{folder / checkpoint.name(last)} is kept" if last else f"{folder} has no checkpoint yet"
        raise UsageError(
            f"the disk is full; {kept}. Free some space and continue with: {shlex.join(again)}"
        ) from None
    return record


def repeated(words: Sequence[str]) -> list[str]:
    """Settings for the command that continues a run: of a setting that was given several times, the last one.
    A value for all of `model` replaces earlier settings inside it."""
    kept: dict[str, str] = {}
    for word in words:
        name = word.partition("=")[0]
        for other in [n for n in kept if n == name or (name in NESTED and n.startswith(f"{name}."))]:
            del kept[other]
        kept[name] = word
    return list(kept.values())


def results(task: str, args: argparse.Namespace) -> Path:
    given: Path | None = args.results
    return given or Path("results") / f"{task}.jsonl"


def finished(folder: Path, args: argparse.Namespace) -> bool:
    """Whether there is nothing left to train."""
    return not args.fresh and (folder / "record.json").is_file()


def score_words(record: dict[str, Any]) -> str:
    """accuracy 0.912 on the test split, 0.917 on the validation split (step 4,000)."""
    metric = record["metric"]
    name, valid = metric["name"], metric["valid"][metric["name"]]
    return f"{name} {metric['test'][name]:.4g} (test), {valid:.4g} (validation, step {metric['best_step']:,})"
