"""The generated tasks at their published sizes: how long that takes, and what the distributions are.

    python -m benchmarks.tasks                    # ListOps, Pathfinder, recall, copy: some minutes
    python -m benchmarks.tasks --path-x           # Path-X too
    python -m benchmarks.tasks --sheet sheet.png  # and a contact sheet of Pathfinder to look at

Everything is generated into a temporary cache, on all cores (COSFORMER_WORKERS says how many).
"""

import argparse
import hashlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from cosformer import tasks
from cosformer.tasks import cache, workers
from cosformer.tasks.base import SPLITS
from cosformer.tasks.listops_trees import CLOSE, OPERATOR


def timed(name: str, **settings: Any) -> tuple[dict[str, Any], tasks.Task]:
    task = tasks.build(name, **settings)
    began = time.perf_counter()
    counts = {split: len(task.dataset(split)) for split in SPLITS}
    seconds = time.perf_counter() - began
    return {"rows": counts, "seconds": round(seconds, 1), "cores": workers.cores()}, task


def listops(**settings: Any) -> dict[str, Any]:
    """Labels, lengths and depths of all 100,000 trees."""
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
    label, length, depth = (np.concatenate(x) for x in (labels, lengths, depths))
    return record | {
        "label shares": [round(float(x), 4) for x in np.bincount(label, minlength=10) / len(label)],
        "length deciles": np.percentile(length, range(0, 101, 10)).astype(int).tolist(),
        "depth shares": {int(d): round(float((depth == d).mean()), 4) for d in np.unique(depth)},
        "sha256": digest.hexdigest(),
    }


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
    return record | out | {"sha256": digest.hexdigest()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tasks", description=__doc__.splitlines()[0])
    parser.add_argument("--path-x", action="store_true", help="Path-X too: 3.3 GB and some ten minutes")
    parser.add_argument("--share", type=float, default=1.0, help="of the published sizes, for a quick look")
    parser.add_argument("--sheet", type=Path, help="where to write a contact sheet of Pathfinder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ[cache.VARIABLE] = folder

        def sizes(train: int, other: int) -> dict[str, int]:
            small, large = max(1, round(other * args.share)), max(1, round(train * args.share))
            return {"train_rows": large, "valid_rows": small, "test_rows": small}

        found = {"listops": listops(**sizes(96_000, 2_000))}
        print(json.dumps({"listops": found["listops"]}), flush=True)
        for name in ("pathfinder", *(("pathx",) if args.path_x else ())):
            print(json.dumps({name: pictures(name, **sizes(160_000, 20_000))}), flush=True)
        for name in ("mqar", "copy"):
            print(json.dumps({name: timed(name, **sizes(100_000, 3_000))[0]}), flush=True)
    if args.sheet:
        task = tasks.build("pathfinder")
        assert isinstance(task, tasks.Pathfinder)
        tasks.contact_sheet(task, args.sheet)


if __name__ == "__main__":
    main()
