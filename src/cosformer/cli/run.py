"""`cosformer run`: other people's programs, with the models of this package known to transformers."""

import argparse
import re
import runpy
import sys
import tempfile
import traceback
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cosformer.cli.errors import UsageError
from cosformer.cli.parser import Parser, did_you_mean

_PYTHON = re.compile(r"python(3(\.\d+)?)?")
HELP = "start another program with the cosformer models registered in transformers"
DESCRIPTION = """Starts a program of another package, a Python file or a module in this process, after `import
cosformer`: transformers' Auto classes then know the models, and folders need no code of their own. Everything
behind -- belongs to the program. Processes that it starts in turn begin without: let them run this command,
as in the last example."""
EXAMPLES = """examples:
  cosformer run -- lm_eval --model hf --model_args pretrained=my-model --tasks lambada_openai
  cosformer run -- transformers serve
  cosformer run -- finetune.py --model my-model     a Python file
  cosformer run -- -m my_package.train              a module
  cosformer run -- python -c "print('hello')"       what python itself would run
  torchrun --nproc_per_node 2 -m cosformer run -- finetune.py
"""


def arguments(parser: Parser) -> None:
    parser.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        help="a command of an installed package, FILE.py, -m MODULE or -c CODE; then its own arguments",
    )


def run(args: Any) -> int:
    words = args.program[1:] if args.program[:1] == ["--"] else args.program
    if not words:
        raise UsageError("a program is missing: cosformer run -- PROGRAM, a file FILE.py, or -m MODULE")
    program, words = _program(words)
    before = sys.argv
    sys.argv = words
    try:
        return _code(program())
    except SystemExit as left:
        return _code(left.code)
    except KeyboardInterrupt:
        raise
    except BaseException:  # errors of the other program keep their traceback
        traceback.print_exc()
        return 1
    finally:
        sys.argv = before


def _program(words: list[str]) -> tuple[Callable[[], Any], list[str]]:
    """The function that runs the program, and sys.argv for it."""
    name, *rest = words
    if _PYTHON.fullmatch(Path(name).name):  # this one is running already
        if not rest or not (rest[0] in ("-c", "-m") or rest[0].endswith(".py")):
            raise UsageError(
                f"{name} must be followed by -c CODE, -m MODULE or FILE.py, and by no other option"
            )
        words, (name, *rest) = rest, rest
    if name == "-c":
        if not rest:
            raise UsageError("-c needs Python code")
        return lambda: _run_code(rest[0]), ["-c", *rest[1:]]
    if name == "-m":
        if not rest:
            raise UsageError("-m needs the name of a module")
        module = rest[0]
        if not _there(module):
            raise UsageError(f"there is no module {module!r}")
        return lambda: _nothing(runpy.run_module(module, run_name="__main__", alter_sys=True)), rest
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise UsageError(f"there is no file {name}")
        # As with `python FILE`, the folder of the file comes first on the path.
        sys.path.insert(0, str(Path(name).resolve().parent))
        return lambda: _nothing(runpy.run_path(name, run_name="__main__")), words
    commands: dict[str, EntryPoint] = {entry.name: entry for entry in entry_points(group="console_scripts")}
    if name not in commands:
        raise UsageError(
            f"no installed package has a command {name!r} (files end in .py, modules follow -m)."
            f"{did_you_mean(name, commands)}"
        )
    return lambda: commands[name].load()(), words


def _run_code(text: str) -> None:
    """As `python -c` does, from a file of its own, which tracebacks then show."""
    sys.path.insert(0, "")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "code.py"
        path.write_text(text, encoding="utf-8")
        runpy.run_path(str(path), run_name="__main__")


def _there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # the parent package is missing, or it is no valid name
        return False


def _nothing(_: object) -> None:
    """For runpy, which returns the variables of a module and no exit code."""


def _code(left: Any) -> int:
    """The exit code that the interpreter would make of a program's result."""
    if left is None:
        return 0
    if isinstance(left, int):
        return left
    print(left, file=sys.stderr)
    return 1
