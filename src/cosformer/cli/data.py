"""`cosformer data`: which tasks there are, and whether their data is complete on this machine."""

import argparse

from cosformer.cli.errors import UsageError, needs_models
from cosformer.cli.parser import Parser, did_you_mean
from cosformer.terminal import plain

HELP = "list the tasks and their data; fetch, generate and verify data"
DESCRIPTION = """Without a task, lists all tasks and whether their data is present. With one, opens all its
splits: what can be generated is generated, what is read is verified, and missing files are listed with the
paths searched and where to get them. Files are searched in the folder that COSFORMER_DATA names."""
EXAMPLES = """examples:
  cosformer data                          all tasks, and what is missing
  cosformer data listops                  generate it, verify it, show a row
  cosformer data mqar length=128 pairs=8
  cosformer data sst2 --fetch             download it, with the package datasets
"""


def arguments(p: Parser) -> None:
    p.add_argument("task", nargs="?", help="name of a task (default: list all tasks)")
    p.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="settings of the task")
    p.add_argument(
        "--fetch", action="store_true", help="download missing files, where a public source is known"
    )


def state(name: str) -> str:
    """Whether all splits of a task can be opened now, or what has to be done first."""
    from cosformer import tasks
    from cosformer.tasks.io import cache

    task = tasks.build(name)
    try:
        with cache.nothing_is_built():
            for split in ("train", "valid", "test"):
                task.dataset(split)
    except cache.NotBuilt:
        return f"will be generated: cosformer data {name}"
    except tasks.DataError as error:
        return f"missing: {str(error).partition(' is missing')[0]}"
    return "ready"


def listing() -> str:
    """All tasks, and whether their data is present."""
    from cosformer import tasks

    rows = [[name, tasks.get(name).title, state(name)] for name in tasks.names()]
    return plain(("task", "", "data"), rows, figures=False)


def opened(name: str, settings: dict[str, object]) -> str:
    """The sizes of all splits of a task, and one of its rows; everything is generated and verified."""
    from cosformer import tasks

    task = tasks.build(name, **settings)
    rows = []
    for split in ("train", "valid", "test"):
        count = len(task.dataset(split))
        if not count:
            raise ValueError(f"the {split} split of {name} has no rows: its files are empty, or too short.")
        rows.append([split, f"{count:,}"])
    sizes = plain(("split", "rows"), rows)
    return f"{task.title}: texts of at most {task.length:,} tokens\n\n{sizes}\n\n{task.example()}"


def run(args: argparse.Namespace) -> int:
    from cosformer.cli.runs import overrides

    if args.task is None and args.fetch:
        raise UsageError("--fetch needs the name of a task: cosformer data sst2 --fetch.")
    with needs_models():
        from cosformer import tasks
        from cosformer.tasks.io import cache
    if args.task is None:
        print(listing())
        return 0
    if args.task not in tasks.names():
        hint = did_you_mean(args.task, tasks.names()) or f" There are {', '.join(tasks.names())}."
        raise UsageError(f"there is no task {args.task!r}.{hint}")
    try:
        for path in tasks.fetch(args.task) if args.fetch else []:
            print(f"fetched {path}")
        with cache.every_byte_is_verified():
            print(opened(args.task, overrides(args.settings)))
    except (ValueError, TypeError) as error:  # among them: data that is missing or damaged
        raise UsageError(str(error)) from None
    return 0
