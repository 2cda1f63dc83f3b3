"""The generated tasks at their published sizes: how long that takes, what the distributions are beside the
published ones, and whether an independent evaluator agrees with the labels of ListOps.

    python -m benchmarks.tasks                    # ListOps, Pathfinder, recall, copy: some minutes
    python -m benchmarks.tasks --path-x           # Path-X too
    python -m benchmarks.tasks --sheet sheet.png  # and a contact sheet of Pathfinder to look at

Everything is generated into a temporary cache, on all cores (COSFORMER_WORKERS says how many). The record and
its report, rendered from it alone, go to benchmarks/reports/.
"""

import argparse
import datetime
import hashlib
import json
import os
import random
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import listops_judge, machine
from benchmarks.terminal import Parser
from cosformer import tasks
from cosformer.atomic import write_json
from cosformer.report.sections.generators import document
from cosformer.report.write import write_beside
from cosformer.tasks.base import SPLITS
from cosformer.tasks.io import cache, workers
from cosformer.tasks.lra.listops_trees import CLOSE, OPERATOR, SYMBOLS

FORMAT = "cosformer tasks benchmark 1"
JUDGED = 10_000  # labels of ListOps that the independent evaluator looks at
REGROWN = 4_000  # trees grown by the published rules, node by node, to compare with


def timed(name: str, **settings: Any) -> tuple[dict[str, Any], tasks.Task]:
    task = tasks.build(name, **settings)
    others, began = machine.Others(), time.perf_counter()
    counts = {split: len(task.dataset(split)) for split in SPLITS}
    seconds, share = time.perf_counter() - began, others.share()
    return {
        "rows": counts,
        "seconds": round(seconds, 1),
        "cores": workers.cores(),
        "others_share": None if share is None else round(share, 3),
    }, task


def listops(**settings: Any) -> dict[str, Any]:
    """Labels, lengths and depths of all trees; those of the published rules; the judged labels."""
    record, task = timed("listops", **settings)
    labels, lengths, depths = [], [], []
    digest = hashlib.sha256()
    for split in SPLITS:
        rows: Any = task.dataset(split)
        ragged = rows.sequences["input_ids"]
        values, offsets = np.asarray(ragged.values), np.asarray(ragged.offsets)
        digest.update(values.tobytes() + rows.labels.tobytes())
        opened = ((values >= OPERATOR) & (values < CLOSE)).astype(np.int32) - (values == CLOSE)
        level = np.cumsum(opened)  # every row closes what it opens: 0 at its end
        # A digit or an operator inside has one more than what is open around it.
        depths.append(np.maximum.reduceat(level + (values < OPERATOR), offsets[:-1]))
        labels.append(rows.labels)
        lengths.append(np.diff(offsets))
    return record | {
        "distributions": distributions(*map(np.concatenate, (labels, lengths, depths))),
        "published rules": regrown(random.Random(0), REGROWN),
        "sha256": digest.hexdigest(),
        "judged": judged(task, JUDGED),
    }


def distributions(label: Any, length: Any, depth: Any) -> dict[str, Any]:
    return {
        "trees": len(label),
        "label shares": [round(float(x), 4) for x in np.bincount(label, minlength=10) / len(label)],
        "length deciles": np.percentile(length, range(0, 101, 10)).astype(int).tolist(),
        "depth shares": {str(d): round(float((depth == d).mean()), 4) for d in np.unique(depth)},
    }


def regrown(rng: random.Random, count: int) -> dict[str, Any]:
    """Distributions of trees that are grown as published, node by node."""
    texts, grown = listops_judge.published(rng, count)
    columns = zip(
        *((listops_judge.value(t), len(t.split()), listops_judge.depth(t)) for t in texts), strict=True
    )
    return distributions(*map(np.array, columns)) | {"grown": grown}


def judged(task: tasks.Task, count: int) -> dict[str, int]:
    """How many labels, spread over the splits, the independent evaluator saw, and how many it denies."""
    symbols, seen, denied = np.array(SYMBOLS, dtype=object), 0, 0
    splits: dict[str, Any] = {split: task.dataset(split) for split in SPLITS}
    total = sum(map(len, splits.values()))
    for rows in splits.values():
        share = min(len(rows), -(-count * len(rows) // total))
        for i in np.linspace(0, len(rows) - 1, share).astype(int).tolist():
            row = rows[i]
            text = " ".join(symbols[row["input_ids"].numpy()])
            seen, denied = seen + 1, denied + (listops_judge.value(text) != int(row["labels"]))
    return {"labels": seen, "denied": denied}


def pictures(name: str, **settings: Any) -> dict[str, Any]:
    """Balance of the labels, and how little the mean light of a picture says about them."""
    record, task = timed(name, **settings)
    digest = hashlib.sha256()
    out: dict[str, Any] = {}
    for split in SPLITS:
        rows: Any = task.dataset(split)
        light = np.concatenate([rows.pictures[i : i + 4096].mean((1, 2)) for i in range(0, len(rows), 4096)])
        for i in range(0, len(rows), 4096):
            digest.update(rows.pictures[i : i + 4096].tobytes())
        digest.update(rows.labels.tobytes())
        out[split] = {
            "share of label 1": round(float(rows.labels.mean()), 4),
            "mean light, label 0 and 1": [round(float(light[rows.labels == v].mean()), 2) for v in (0, 1)],
        }
    return record | {"splits": out, "sha256": digest.hexdigest()}


def measure(share: float, path_x: bool) -> dict[str, Any]:
    """All of them, at a share of their published sizes."""

    def sizes(train: int, other: int) -> dict[str, int]:
        small, large = max(1, round(other * share)), max(1, round(train * share))
        return {"train_rows": large, "valid_rows": small, "test_rows": small}

    found = {"pathfinder": pictures("pathfinder", **sizes(160_000, 20_000))}
    print(json.dumps(found), flush=True)
    if path_x:
        found["pathx"] = pictures("pathx", **sizes(160_000, 20_000))
        print(json.dumps(found["pathx"]), flush=True)
    found["listops"] = listops(**sizes(96_000, 2_000))
    print(json.dumps(found["listops"]), flush=True)
    for name in ("mqar", "copy"):
        found[name] = timed(name, **sizes(100_000, 3_000))[0]
        print(json.dumps({name: found[name]}), flush=True)
    return found


def main() -> None:
    parser = Parser(prog="python -m benchmarks.tasks", description=__doc__.partition("\n\n")[0])
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    parser.add_argument("--path-x", action="store_true", help="Path-X too: 3.3 GB and some ten minutes")
    parser.add_argument("--share", type=float, default=1.0, help="of the published sizes, for a quick look")
    parser.add_argument("--sheet", type=Path, help="where to write a contact sheet of Pathfinder")
    parser.add_argument("--out", type=Path, default=machine.ROOT / "benchmarks" / "reports")
    args = parser.parse_args()
    data = {
        "format": FORMAT,
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", "benchmarks.tasks", *sys.argv[1:]]),
        "hardware": machine.hardware(torch.device("cpu")),
        "versions": machine.versions() | {"numpy": np.__version__},
        "commit": machine.commit(),
        "share": args.share,
    }
    with tempfile.TemporaryDirectory() as folder:
        os.environ[cache.VARIABLE] = folder
        data["tasks"] = measure(args.share, args.path_x)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"tasks-cpu-{data['date'][:10].replace('-', '')}"
    write_json(path.with_suffix(".json"), data)
    print(*write_beside(document(data), path.with_suffix(".json")), sep="\n")
    if args.sheet:
        task = tasks.build("pathfinder")
        assert isinstance(task, tasks.Pathfinder)
        tasks.contact_sheet(task, args.sheet)


if __name__ == "__main__":
    main()
