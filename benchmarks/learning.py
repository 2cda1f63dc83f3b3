"""Does every task learn? Each recipe at its smallest scale, trained on a CPU, beside what chance gives.

Chance is the score of a predictor that has only counted labels: the same logits everywhere, the logarithms of
their frequencies in the training split (their mean, for a regression). A task is learned where the test score
is better than chance by more than two standard errors of that difference, over the rows of the test split.
Where that split is too small to tell (MRPC's and RTE's) and the task has folds, each fold of the training
rows is a test split once, with a run of its own, and all of them count together.
Started again, it goes on where it was; a task whose files are not there is left out.

    PYTHONPATH=src python3 -m benchmarks.learning
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import machine
from benchmarks.terminal import Parser
from cosformer import attention as known
from cosformer import reading, record_file, tasks
from cosformer.report.sections.learning import FEW, document
from cosformer.report.write import write_beside
from cosformer.tasks import DataError, Rows, Task
from cosformer.tasks.glue.finetuning import FOLDS
from cosformer.tasks.metrics import Metric
from cosformer.training import recipes, train
from cosformer.training.main import statistics
from cosformer.training.recipes import SCALES
from cosformer.training.run import Run

ROWS = 2000  # of the training split are counted
DRAWS = 400  # of the test split's rows, for the standard error


def constant(splits: list[Rows], task: Task) -> Tensor:
    """The logits of counting alone, from the labels of some splits."""
    labels = []
    for rows in splits:
        # Spread over the split, which may be sorted by label.
        chosen = torch.linspace(0, len(rows) - 1, min(ROWS, len(rows))).long().tolist()
        labels += [task.collate([rows[i]])["labels"].flatten() for i in chosen]
    known = torch.cat(labels)
    known = known[known != -100]
    if task.num_labels == 1:
        return known.double().mean()[None]
    classes = task.num_labels or task.vocab_size
    return (torch.bincount(known.long(), minlength=classes).double() + 0.1).log()


def counted(task: Task, logits: Tensor | None = None, batch: int = 64) -> Tensor:
    """What counting alone gives on the test split: the metric's statistics of each row."""
    logits = constant([task.dataset("train")], task) if logits is None else logits
    test_rows, found = task.dataset("test"), []
    for start in range(0, len(test_rows), batch):
        rows = task.collate([test_rows[i] for i in range(start, min(start + batch, len(test_rows)))])
        found.append(task.metric.rows(logits.float().expand(*rows["labels"].shape, len(logits)), rows))
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


def parts(run: Run) -> list[Run]:
    """The run itself; or, where its test split is too small and the task has folds, one run for each."""
    task = tasks.build(run.task, **run.task_settings)
    if "fold" not in tasks.parameters(run.task) or len(task.dataset("test")) >= FEW:
        return [run]
    return [run.replace(task_settings={**run.task_settings, "fold": fold}) for fold in range(FOLDS)]


def trained(run: Run, folder: Path) -> dict[str, Any]:
    """The record of a run with chance and margin beside it. Of folds: the record of the first, with the score
    of all their test rows together, the longest time, and what each of them had under `folds`."""
    runs = parts(run)
    places = [folder / f"fold-{i}" for i in range(len(runs))] if len(runs) > 1 else [folder]
    records = [train(r, p, results=p / "record.jsonl") for r, p in zip(runs, places, strict=True)]
    scored = [statistics(place) for place in places]
    task, own = scored[0][0], torch.cat([rows for _, rows in scored])
    if len(runs) == 1:
        return {**records[0], **beside(task.metric, own, counted(task))}
    # A fold that has more of one label leaves less of it to the others: counted among those, the label that
    # is more frequent would too often be the wrong one. So it is counted over all folds.
    logits = constant([t.dataset("test") for t, _ in scored], task)
    chance = torch.cat([counted(t, logits) for t, _ in scored])
    score = {"best_step": None, "valid": None, "test": task.metric.score(own)}
    return {
        **records[0],
        **beside(task.metric, own, chance),
        "settings": run.to_dict(),
        "metric": records[0]["metric"] | score,
        "wall_time_s": max(r["wall_time_s"] for r in records),
        "folds": [{key: r[key] for key in ("id", "metric", "steps", "wall_time_s")} for r in records],
    }


def beside(metric: Metric, own: Tensor, chance: Tensor) -> dict[str, Any]:
    return {"chance": metric.score(chance), "margin": margin(metric, own, chance)}


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
    attentions = args.attentions.split(",")
    options = {"scale": args.scale, "seed": args.seed, "device": "cpu"}
    try:  # all of them before the first is trained
        for attention in attentions:
            known.traits(attention)
        runs = {
            name: {attention: recipes.build(name, attention=attention, **options) for attention in attentions}
            for name in args.recipes.split(",")
        }
    except ValueError as error:
        parser.error(str(error))
    for name, of_attention in runs.items():
        for attention, run in of_attention.items():
            folder = args.folder / f"{name}-{attention}-{args.seed}-{args.scale}"
            try:
                record = trained(run, folder)
            except DataError as error:
                print(f"{name} is left out: {error}", file=sys.stderr, flush=True)
                absent.append(name)
                break
            record_file.append_once(path, record, "id")
            print(name, attention, *(record[k] for k in ("metric", "chance", "margin")), flush=True)
    records = reading.json_lines(path)
    if records:
        print(*write_beside(document(records, sorted(absent), args.scale, FOLDS), path), sep="\n")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt as stopped:
        sys.exit(f"\n{str(stopped) or 'Stopped'}; the same command goes on from there.")
