"""Does every task learn? Each recipe at its smallest scale, trained on a CPU, beside what chance gives.

Chance is the score of a predictor that has only counted labels: the same logits everywhere, the logarithms of
their frequencies in the training split (their mean, for a regression). Started again, it goes on where it
was; a task whose files are not there is left out, with the reason.

    PYTHONPATH=src python3 -m benchmarks.learning --folder runs/learning
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from benchmarks.terminal import Parser, markdown
from cosformer import tasks
from cosformer.tasks import DataError, Task
from cosformer.training import files, recipes, train
from cosformer.training.recipes import SCALES

ROWS = 2000  # of the training split are counted


def chance(task: Task, batch: int = 64) -> dict[str, float]:
    """What counting alone scores on the test split."""
    train_rows, test_rows = task.dataset("train"), task.dataset("test")
    labels = torch.cat(
        [task.collate([train_rows[i]])["labels"].flatten() for i in range(min(ROWS, len(train_rows)))]
    )
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
    return task.metric.score(torch.cat(found))


def learned(record: dict[str, Any]) -> bool:
    metric = record["metric"]
    score, by_counting = metric["test"][metric["name"]], record["chance"][metric["name"]]
    return bool(score > by_counting if metric["higher_is_better"] else score < by_counting)


def to_markdown(records: list[dict[str, Any]], absent: dict[str, str], scale: str) -> str:
    header = ("task", "attention", "metric", "test", "chance", "seconds", "learned")
    rows = [
        [
            r["task"], r["mechanism"], r["metric"]["name"], f"{r['metric']['test'][r['metric']['name']]:.4f}",
            f"{r['chance'][r['metric']['name']]:.4f}", f"{r['wall_time_s']:.0f}",
            "yes" if learned(r) else "NO",
        ]
        for r in records
    ]  # fmt: skip
    left_out = "".join(f"\n- `{name}`: {reason}" for name, reason in absent.items())
    return (
        f"# Every task at scale {scale}\n\nOn {records[0]['hardware']['cpu']}, seed {records[0]['seed']}. "
        "Chance is the score of a predictor that has only counted the labels of the training split.\n\n"
        f"{markdown(header, rows)}\n" + (f"\nLeft out:\n{left_out}\n" if absent else "")
    )


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
    path, absent = args.out / f"learning-{args.scale}.jsonl", {}
    for name in args.recipes.split(","):
        for attention in args.attentions.split(","):
            run = recipes.build(name, scale=args.scale, attention=attention, seed=args.seed, device="cpu")
            folder = args.folder / f"{name}-{attention}-{args.seed}-{args.scale}"
            try:
                record = train(run, folder, results=folder / "record.jsonl")
                by_counting = chance(tasks.build(run.task, **run.task_settings))
            except DataError as error:
                absent[name] = str(error)
                break
            files.append_once(path, {**record, "chance": by_counting}, "id")
            print(name, attention, record["metric"]["test"], "by counting", by_counting, flush=True)
    records = files.lines(path)
    if records:
        path.with_suffix(".md").write_text(to_markdown(records, absent, args.scale))
        print(path.with_suffix(".md"))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt as stopped:
        sys.exit(f"\n{str(stopped) or 'Stopped'}; the same command goes on from there.")
