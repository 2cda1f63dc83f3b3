"""What a state can hold: accuracy on associative recall and on copying against the size of the state.

Trains each mechanism at several widths, one run a folder; started again, it goes on where it was. Every
finished run is a record in results/<task>.jsonl, and table and plot are rendered from those alone.

    PYTHONPATH=src python3 -m benchmarks.recall --scale cpu      # half an hour on one core
    PYTHONPATH=src python3 -m benchmarks.recall                  # the recipes' scale small, for a GPU
    PYTHONPATH=src python3 -m benchmarks.recall --scale cpu --render
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.terminal import Parser
from cosformer import reading, tasks
from cosformer.report.sections.recall import document, variant
from cosformer.report.write import write_beside
from cosformer.training import Run, recipes, train
from cosformer.training.model import configuration

TASKS = ("mqar", "copy")
# By name: the attention, of all layers or of each of the two, and fields of the model.
VARIANTS: dict[str, tuple[str | list[str], dict[str, Any]]] = {
    **{name: (name, {}) for name in ("cosformer", "linear", "relu", "softmax")},
    # One head looks at its neighbour, one at everything; the state is about half that of one wide head.
    "cosformer, windows": (
        "cosformer", {"num_attention_heads": 2, "attention_parameters": {"windows": [2, None]}},
    ),
    "cosformer, convolution": ("cosformer", {"conv_size": 4}),
    "cosformer, one softmax layer": (["cosformer", "softmax"], {}),
}  # fmt: skip
WIDTHS = {"cpu": (8, 16, 32, 64)}  # of a scale, where they are not (32, 64, 128, 256)

# The scale "cpu": what a core learns in a minute or two a run, on top of the recipes' scale tiny. Rows are as
# hard as softmax, at the greater widths, still solves in that time.
_CORE: dict[str, Any] = {
    "batch_size": 64, "learning_rate": 2e-3, "warmup": 100, "eval_every": 400, "save_every": 1000,
    "device": "cpu",
}  # fmt: skip
_CORE_MODEL = {"num_hidden_layers": 2, "num_attention_heads": 1, "initializer_range": 0.1}
_CORE_ROWS = {"train_rows": 50_000, "valid_rows": 500, "test_rows": 1_000}
_CORE_TASKS: dict[str, dict[str, Any]] = {
    "mqar": {"steps": 1600, "task_settings": {"length": 16, "pairs": 4, "vocab_size": 16, **_CORE_ROWS}},
    "copy": {"steps": 1000, "task_settings": {"length": 34, "vocab_size": 34, **_CORE_ROWS}},
}


def runs(scale: str, variants: Sequence[str], widths: Sequence[int], seed: int) -> list[tuple[str, Run]]:
    """Each with the name of its variant."""
    return [(name, _run(t, scale, name, width, seed)) for t in TASKS for width in widths for name in variants]


def _run(task: str, scale: str, name: str, width: int, seed: int) -> Run:
    attention, own = VARIANTS[name]
    if scale != "cpu":
        model = {"hidden_size": width, **own}
        return recipes.build(task, scale=scale, attention=attention, seed=seed, model=model)
    model = {**_CORE_MODEL, "hidden_size": width, **own}
    settings = {**_CORE, **_CORE_TASKS[task], "model": model, "seed": seed}
    return recipes.build(task, scale="tiny", attention=attention, **settings).replace(scale=scale)


def state_size(run: Run) -> int:
    """Numbers that all layers together carry at the end of a text."""
    task = tasks.build(run.task, **run.task_settings)
    return configuration(run, task).state_size(task.length)


def points(results: Path, scale: str) -> list[dict[str, Any]]:
    """The newest record of each task, variant, width and seed."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for task in TASKS:
        for record in reading.json_lines(results / f"{task}.jsonl"):
            run = Run.from_dict(record["settings"])
            if run.scale == scale:
                width, name = run.model["hidden_size"], variant(record)
                found[task, name, width, run.seed] = {
                    "task": task, "attention": name, "width": width, "seed": run.seed,
                    "state": state_size(run), "title": tasks.get(task).title, "record": record,
                    **record["metric"]["test"],
                }  # fmt: skip
    return list(found.values())


def render(results: Path, scale: str, out: Path) -> None:
    found = points(results, scale)
    if not found:
        sys.exit(f"there is no record at scale {scale} in {results}: run this without --render first.")
    out.mkdir(parents=True, exist_ok=True)
    print(*write_beside(document(found, scale), out / f"recall-{scale}.json"), sep="\n")


def main() -> None:
    parser = Parser(prog="python -m benchmarks.recall", description=__doc__.splitlines()[0])
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    parser.add_argument("--scale", default="small", choices=(*recipes.SCALES, "cpu"))
    parser.add_argument(
        "--widths", help="hidden sizes, with commas between them (scale cpu: 8,16,32,64; else 32,64,128,256)"
    )
    parser.add_argument("--variants", default="|".join(VARIANTS), help="likewise, with | between them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs") / "recall", help="of the runs")
    parser.add_argument("--results", type=Path, default=machine.ROOT / "results", help="of the records")
    parser.add_argument("--out", type=Path, default=machine.ROOT / "benchmarks" / "reports")
    parser.add_argument(
        "--render", action="store_true", help="render the records that are there, train nothing"
    )
    args = parser.parse_args()
    if not args.render:
        default = WIDTHS.get(args.scale, (32, 64, 128, 256))
        widths = [int(w) for w in args.widths.split(",")] if args.widths else default
        variants = args.variants.split("|")
        unknown = [name for name in variants if name not in VARIANTS]
        if unknown:
            parser.error(f"--variants has no {unknown[0]!r}: there are {' | '.join(VARIANTS)}")
        planned = runs(args.scale, variants, widths, args.seed)
        for number, (of, run) in enumerate(planned, 1):
            words = re.sub("[^a-z]+", "-", of)
            name = f"{run.task}-{words}-{run.model['hidden_size']}-{run.seed}-{run.scale}"
            print(f"{number} of {len(planned)}: {name}", flush=True)
            record = train(run, args.folder / name, results=args.results / f"{run.task}.jsonl")
            print(f"  {record['metric']['test']}", flush=True)
    render(args.results, args.scale, args.out)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt as stopped:
        sys.exit(f"\n{str(stopped) or 'Stopped'}; the same command goes on from there.")
