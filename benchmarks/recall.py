"""What a state can hold: accuracy on associative recall and on copying against the size of the state.

Trains each mechanism at several widths, one run a folder; started again, it goes on where it was. Every
finished run is a record in results/<task>.jsonl, and table and plot are rendered from those alone.

    PYTHONPATH=src python3 -m benchmarks.recall --scale cpu      # half an hour on one core
    PYTHONPATH=src python3 -m benchmarks.recall                  # the recipes' scale small, for a GPU
    PYTHONPATH=src python3 -m benchmarks.recall --scale cpu --render
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.plot import COLOURS as OPERATOR_COLOURS
from benchmarks.terminal import Parser, markdown
from cosformer import tasks
from cosformer.training import Run, files, recipes, train
from cosformer.training.model import configuration

TASKS = ("mqar", "copy")
ATTENTIONS = ("cosformer", "linear", "relu", "softmax")
COLOURS = {
    "cosformer": OPERATOR_COLOURS["cosformer"], "softmax": OPERATOR_COLOURS["sdpa"], "linear": "#009E73",
    "relu": "#AA4499",
}  # fmt: skip
WIDTHS = {"cpu": (8, 16, 32, 64)}  # of a scale, where they are not (32, 64, 128, 256)

# The scale "cpu": what a core learns in a minute or two a run, on top of the recipes' scale tiny. Rows are as
# hard as softmax, at the greater widths, still solves in that time.
_CORE: dict[str, Any] = {
    "batch": 64, "learning_rate": 2e-3, "warmup": 100, "eval_every": 400, "save_every": 1000, "device": "cpu",
}  # fmt: skip
_CORE_MODEL = {"num_hidden_layers": 2, "num_attention_heads": 1, "initializer_range": 0.1}
_CORE_ROWS = {"train_rows": 50_000, "valid_rows": 500, "test_rows": 1_000}
_CORE_TASKS: dict[str, dict[str, Any]] = {
    "mqar": {"steps": 1600, "task_settings": {"length": 16, "pairs": 4, "vocab_size": 16, **_CORE_ROWS}},
    "copy": {"steps": 1000, "task_settings": {"length": 34, "vocab_size": 34, **_CORE_ROWS}},
}


def runs(scale: str, attentions: Sequence[str], widths: Sequence[int], seed: int) -> list[Run]:
    return [_run(t, scale, name, width, seed) for t in TASKS for width in widths for name in attentions]


def _run(task: str, scale: str, attention: str, width: int, seed: int) -> Run:
    if scale != "cpu":
        return recipes.build(task, scale=scale, attention=attention, seed=seed, model={"hidden_size": width})
    model = {**_CORE_MODEL, "hidden_size": width}
    settings = {**_CORE, **_CORE_TASKS[task], "model": model, "seed": seed}
    return recipes.build(task, scale="tiny", attention=attention, **settings).replace(scale=scale)


def state_size(run: Run) -> int:
    """Numbers that all layers together carry at the end of a text."""
    task = tasks.build(run.task, **run.task_settings)
    config = configuration(run, task)
    own = config.build_attention().state_size(
        task.length, num_kv_heads=config.num_key_value_heads or 1, head_dim=config.head_dim
    )
    return own * config.num_hidden_layers


def points(results: Path, scale: str) -> list[dict[str, Any]]:
    """The newest record of each task, mechanism, width and seed."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for task in TASKS:
        for record in files.lines(results / f"{task}.jsonl"):
            run = Run.from_dict(record["settings"])
            if run.scale == scale:
                width = run.model["hidden_size"]
                found[task, run.attention, width, run.seed] = {
                    "task": task, "attention": run.attention, "width": width, "seed": run.seed,
                    "state": state_size(run), "settings": run, "record": record, **record["metric"]["test"],
                }  # fmt: skip
    return list(found.values())


def to_markdown(found: list[dict[str, Any]], scale: str, plot: str | None) -> str:
    parts = [
        f"# What a state can hold\n\n`python -m benchmarks.recall --scale {scale}`, on {_made_on(found)}.",
        "Accuracy over the tokens asked for, on unseen rows, at the step that was best on the validation "
        "split. All mechanisms have the same settings; softmax keeps every key and value, and its state is "
        "that of the whole row. In associative recall a model that knows which values stand in a row, but "
        "not behind which key, scores (1 + 1/2 + ... + 1/pairs) / pairs by guessing among those not given "
        "yet: 0.52 with four pairs.",
    ]
    for task in TASKS:
        own = sorted((p for p in found if p["task"] == task), key=lambda p: (p["attention"], p["width"]))
        table = [
            [p["attention"], str(p["width"]), f"{p['state']:,}", f"{p['accuracy']:.4f}", f"{p['exact']:.4f}"]
            for p in own
        ]
        header = ("attention", "width", "numbers in the state", "accuracy", "rows without a mistake")
        said = sorted({_words(p["settings"]) for p in own})
        parts += [f"## {tasks.get(task).title}", "; ".join(said) + ".", markdown(header, table)]
    if plot:
        parts.append(f"![accuracy against the size of the state]({plot})")
    return "\n\n".join(parts) + "\n"


def _words(run: Run) -> str:
    task = ", ".join(f"{name} {value}" for name, value in run.task_settings.items())
    return (
        f"Rows: {task or 'as the task has them'}. Models: {run.model['num_hidden_layers']} layers, "
        f"{run.model['num_attention_heads']} head(s). Training: {run.steps:,} steps of {run.batch} rows, "
        f"rate {run.learning_rate:g}, seed {run.seed}"
    )


def _made_on(found: list[dict[str, Any]]) -> str:
    records = [p["record"] for p in found]
    hardware = {r["hardware"].get("gpu") or f"{r['hardware']['cpu']}, {r['threads']} thread" for r in records}
    commits = {(r["commit"]["id"] or "unknown")[:10] for r in records}
    return f"{'; '.join(sorted(hardware))}; commit {', '.join(sorted(commits))}"


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """A panel a task. Raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(TASKS), figsize=(11, 4.4), squeeze=False, layout="constrained")
    for axis, task in zip(axes[0], TASKS, strict=True):
        for name in sorted({p["attention"] for p in found}):
            own = sorted(
                (p["state"], p["accuracy"]) for p in found if p["task"] == task and p["attention"] == name
            )
            if own:
                ours = name == "cosformer"
                axis.plot(
                    *zip(*own, strict=True), marker="o", label=name, color=COLOURS.get(name),
                    lw=2.4 if ours else 1.5, zorder=4 if ours else 3,
                )  # fmt: skip
        axis.set_xscale("log", base=2)
        axis.set_ylim(-0.02, 1.02)
        axis.set_xlabel("numbers in the state, all layers")
        axis.set_ylabel("accuracy")
        axis.set_title(tasks.get(task).title, loc="left", fontsize=11)
        axis.grid(alpha=0.25)
    axes[0][0].legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=160)
    plt.close(figure)


def render(results: Path, scale: str, out: Path) -> None:
    found = points(results, scale)
    if not found:
        sys.exit(f"there is no record at scale {scale} in {results}: run this without --render first.")
    out.mkdir(parents=True, exist_ok=True)
    try:
        draw(found, out / f"recall-{scale}.png")
        plot: str | None = f"recall-{scale}.png"
    except ImportError:
        plot = None
        print("No plot: matplotlib is not installed (pip install matplotlib).", file=sys.stderr)
    (out / f"recall-{scale}.md").write_text(to_markdown(found, scale, plot))
    print(out / f"recall-{scale}.md")


def main() -> None:
    parser = Parser(prog="python -m benchmarks.recall", description=__doc__.splitlines()[0])
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    parser.add_argument("--scale", default="small", choices=(*recipes.SCALES, "cpu"))
    parser.add_argument(
        "--widths", help="hidden sizes, with commas between them (scale cpu: 8,16,32,64; else 32,64,128,256)"
    )
    parser.add_argument("--attentions", default=",".join(ATTENTIONS), help="likewise")
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
        planned = runs(args.scale, args.attentions.split(","), widths, args.seed)
        for number, run in enumerate(planned, 1):
            name = f"{run.task}-{run.attention}-{run.model['hidden_size']}-{run.seed}-{run.scale}"
            print(f"{number} of {len(planned)}: {name}", flush=True)
            record = train(run, args.folder / name, results=args.results / f"{run.task}.jsonl")
            print(f"  {record['metric']['test']}", flush=True)
    render(args.results, args.scale, args.out)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt as stopped:
        sys.exit(f"\n{str(stopped) or 'Stopped'}; the same command goes on from there.")
