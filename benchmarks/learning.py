"""Does every task learn? Each recipe at its smallest scale, trained on a CPU, beside what chance gives.

Chance is the score of a predictor that has only counted labels: the same logits everywhere, the logarithms of
their frequencies in the training split (their mean, for a regression). A task is learned where the test score
is better than chance by more than two standard errors of that difference, over the rows of the test split.
Started again, it goes on where it was; a task whose files are not there is left out.

    PYTHONPATH=src python3 -m benchmarks.learning
"""

import argparse
import functools
import operator
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import machine
from benchmarks.terminal import Parser, markdown
from cosformer.tasks import DataError, Task
from cosformer.tasks.metrics import Metric
from cosformer.training import files, recipes, train
from cosformer.training.main import statistics
from cosformer.training.recipes import SCALES

ROWS = 2000  # of the training split are counted
DRAWS = 400  # of the test split's rows, for the standard error


def counted(task: Task, batch: int = 64) -> Tensor:
    """What counting alone gives on the test split: the metric's statistics of each row."""
    train_rows, test_rows = task.dataset("train"), task.dataset("test")
    # Spread over the split, which may be sorted by label.
    chosen = torch.linspace(0, len(train_rows) - 1, min(ROWS, len(train_rows))).long().tolist()
    labels = torch.cat([task.collate([train_rows[i]])["labels"].flatten() for i in chosen])
    labels = labels[labels != -100]
    if task.num_labels == 1:
        constant = labels.double().mean()[None]
    else:
        classes = task.num_labels or task.vocab_size
        constant = (torch.bincount(labels.long(), minlength=classes).double() + 0.1).log()
    found = []
    for start in range(0, len(test_rows), batch):
        rows = task.collate([test_rows[i] for i in range(start, min(start + batch, len(test_rows)))])
        logits = constant.float().expand(*rows["labels"].shape, len(constant))
        found.append(task.metric.rows(logits, rows))
    return torch.cat(found)


def margin(metric: Metric, own: Tensor, chance: Tensor) -> dict[str, float | int]:
    """How much better than chance, in the metric's own measure, and the standard error of that: both are
    scored on the same rows, drawn again and again with repetition."""

    def better(rows: Tensor) -> float:
        difference = metric.score(own[rows])[metric.name] - metric.score(chance[rows])[metric.name]
        return difference if metric.higher_is_better else -difference

    generator = torch.Generator().manual_seed(0)
    draws = [better(torch.randint(len(own), (len(own),), generator=generator)) for _ in range(DRAWS)]
    return {
        "better_by": better(torch.arange(len(own))),
        "standard_error": float(torch.tensor(draws, dtype=torch.float64).std()),
        "rows": len(own),
    }


def learned(record: dict[str, Any]) -> bool:
    own = record["margin"]
    return bool(own["better_by"] > 2 * own["standard_error"])


def to_markdown(records: list[dict[str, Any]], absent: list[str], scale: str) -> str:
    """Of the newest record of each task, mechanism and seed."""
    newest = {(r["task"], r["mechanism"], r["seed"]): r for r in records}
    chosen = [newest[key] for key in sorted(newest)]
    header = (
        "task", "attention", "metric", "test", "chance", "better by", "standard error", "test rows",
        "steps", "seconds", "learned",
    )  # fmt: skip
    rows = [
        [
            r["task"], r["mechanism"], r["metric"]["name"], f"{r['metric']['test'][r['metric']['name']]:.4f}",
            f"{r['chance'][r['metric']['name']]:.4f}", f"{r['margin']['better_by']:.4f}",
            f"{r['margin']['standard_error']:.4f}", f"{r['margin']['rows']:,}", f"{r['steps']:,}",
            f"{r['wall_time_s']:.0f}", "yes" if learned(r) else "NO",
        ]
        for r in chosen
    ]  # fmt: skip
    failed = [f"{r['task']} with {r['mechanism']}" for r in chosen if not learned(r)]
    return (
        f"# Every task at scale {scale}\n\n"
        f"`python -m benchmarks.learning --scale {scale}`, {_of(chosen, 'seed')}, on "
        f"{_of(chosen, 'hardware', 'cpu')} with {_of(chosen, 'threads')} thread, commit "
        f"{_of(chosen, 'commit', 'id')}.\n\n"
        "Chance is the score of a predictor that has only counted the labels of the training split. A task "
        "is learned where the test score is better by more than two standard errors of the difference, "
        "found by drawing the rows of the test split again and again. Both attentions have the same "
        "settings; seconds are those of training, validation and test.\n\n"
        f"{markdown(header, rows)}\n\n"
        + (f"Not learned in this time: {', '.join(failed)}.\n" if failed else "All of these are learned.\n")
        + (f"\nLeft out, for their files were not there: {', '.join(absent)}.\n" if absent else "")
    )


def _of(records: list[dict[str, Any]], *path: str) -> str:
    """The values of a field, each once: `seed 0`, or the value alone where it speaks for itself."""
    found = {str(functools.reduce(operator.getitem, path, r)) for r in records}
    text = ", ".join(sorted(v[:10] if path[-1] == "id" else v for v in found))
    return f"seed {text}" if path == ("seed",) else text


def main() -> None:
    parser = Parser(prog="python -m benchmarks.learning", description=__doc__.splitlines()[0])
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    parser.add_argument("--recipes", default=",".join(recipes.names()), help="with commas between them")
    parser.add_argument("--attentions", default="softmax,cosformer", help="likewise")
    parser.add_argument("--scale", default="tiny", choices=SCALES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs") / "learning", help="of the runs")
    parser.add_argument("--out", type=Path, default=machine.ROOT / "results", help="of records and table")
    args = parser.parse_args()
    path, absent = args.out / f"learning-{args.scale}.jsonl", []
    for name in args.recipes.split(","):
        for attention in args.attentions.split(","):
            run = recipes.build(name, scale=args.scale, attention=attention, seed=args.seed, device="cpu")
            folder = args.folder / f"{name}-{attention}-{args.seed}-{args.scale}"
            try:
                record = train(run, folder, results=folder / "record.jsonl")
            except DataError as error:
                print(f"{name} is left out: {error}", file=sys.stderr, flush=True)
                absent.append(name)
                break
            task, own = statistics(folder)
            chance = counted(task)
            beside = {"chance": task.metric.score(chance), "margin": margin(task.metric, own, chance)}
            files.append_once(path, {**record, **beside}, "id")
            print(name, attention, record["metric"]["test"], beside, flush=True)
    records = files.lines(path)
    if records:
        path.with_suffix(".md").write_text(to_markdown(records, sorted(absent), args.scale))
        print(path.with_suffix(".md"))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt as stopped:
        sys.exit(f"\n{str(stopped) or 'Stopped'}; the same command goes on from there.")
