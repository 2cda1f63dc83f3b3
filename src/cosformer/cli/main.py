"""The command itself: its subcommands, and how their errors are reported."""

import errno
import io
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from cosformer import __version__
from cosformer.cli import (
    bench,
    compare,
    data,
    demo,
    evaluate,
    export,
    generate,
    info,
    report,
    run,
    serve,
    train,
)
from cosformer.cli.errors import (
    KEPT,
    Stopped,
    UsageError,
    about,
    capitalised,
    full_disk,
    out_of_memory,
    printable,
)
from cosformer.cli.interrupt import ending_imports
from cosformer.cli.parser import Parser, did_you_mean
from cosformer.cli.runs import Failed

DESCRIPTION = """cosFormer attention: exact, linear in sequence length, with a state of constant size."""
EXAMPLES = """start here:
  cosformer info --check                            show versions, devices and backends, and test the backends
  cosformer demo                                    train and compare two small models, in five minutes
  cosformer COMMAND --help                          each command, with examples
"""

COMMANDS: dict[str, ModuleType] = {
    "demo": demo,
    "info": info,
    "train": train,
    "eval": evaluate,
    "export": export,
    "compare": compare,
    "data": data,
    "generate": generate,
    "serve": serve,
    "bench": bench,
    "report": report,
    "run": run,
}


def parser() -> Parser:
    p = Parser(prog="cosformer", description=DESCRIPTION, epilog=EXAMPLES)
    p.add_argument("--version", action="version", version=f"cosformer {__version__}")
    commands = p.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for name, module in COMMANDS.items():
        sub = commands.add_parser(
            name, help=module.HELP, description=module.DESCRIPTION, epilog=module.EXAMPLES
        )
        module.arguments(sub)
        sub.set_defaults(parser=sub)
    return p


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line and returns its exit code: 0, 1 (it failed), 2 (a mistake), 130 (Ctrl-C)."""
    if arguments is None:
        _prepare_output()
    words = list(sys.argv[1:] if arguments is None else arguments)
    p = parser()
    if not words:
        p.print_help()
        return 0
    # argparse would name a missing command first, and list them all for a wrong one.
    if words[0].startswith("-") and words[0] not in ("-h", *p.flags):
        p.unknown(words)
    if not words[0].startswith("-") and words[0] not in COMMANDS:
        p.error(f"there is no command {words[0]!r}.{did_you_mean(words[0], COMMANDS)}")
    args = p.parse_args(words)
    try:
        with ending_imports(args.command):
            code: int = COMMANDS[args.command].run(args)
            sys.stdout.flush()
            return code
    except UsageError as error:
        return _say(args.command, str(error), 2)
    except Failed as failed:
        return _say(args.command, str(failed), 1)
    except Stopped as stopped:
        print(file=sys.stderr)  # a progress bar may be in the line
        return _say(args.command, str(stopped), 130)
    except KeyboardInterrupt:
        return _say(args.command, "stopped.", 130)
    except BrokenPipeError:  # `cosformer info | head`: the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _say(args.command, about(error), 2)
    except Exception as error:
        if out_of_memory(error):
            return _say(args.command, f"there is not enough memory: choose smaller sizes; {KEPT}.", 2)
        if not full_disk(error):
            raise
        return _say(args.command, about(OSError(errno.ENOSPC, "no space left")), 2)


def _prepare_output() -> None:
    """A closed output takes everything, and characters that its encoding lacks become question marks."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _say(command: str, sentence: str, code: int) -> int:
    print(f"cosformer {command}: {printable(capitalised(sentence))}", file=sys.stderr)
    return code
