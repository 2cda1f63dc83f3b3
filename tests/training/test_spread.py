"""Two processes do what one does."""

import os
import subprocess
import sys
from pathlib import Path

import torch

from cosformer.training import checkpoint, files, train
from tests.training.spread import RUNS

ROOT = Path(__file__).resolve().parents[2]


def test_two_processes_train_as_one(tmp_path):
    """Losses, gradients, scores and weights: the batch is divided, and nothing is counted twice or lost. The
    splits have odd sizes."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    environment |= {"OMP_NUM_THREADS": "1"}
    launched = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launched, "-m", "tests.training.spread", str(tmp_path / "two")],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for name, run in RUNS.items():
        one, two = tmp_path / "one" / name, tmp_path / "two" / name
        train(run, one, progress=False, results=one / "results.jsonl")
        for a, b in zip(_figures(one), _figures(two), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
        records = [files.lines(folder / "results.jsonl") for folder in (one, two)]
        assert [len(r) for r in records] == [1, 1], "one process writes the record"
        assert records[0][0]["metric"] == records[1][0]["metric"]
        assert [r[0]["processes"] for r in records] == [1, 2]
        assert records[0][0]["tokens"] == records[1][0]["tokens"]
        assert (two / checkpoint.name(6) / "random-1.safetensors").is_file()


def _figures(folder):
    lines = files.lines(folder / "log.jsonl")
    values = [[line["loss"], line["grad_norm"]] for line in lines if "loss" in line]
    assert len(values) == 6
    from safetensors.torch import load_file

    weights = load_file(folder / checkpoint.name(6) / "model.safetensors")
    return [torch.tensor(values), *(weights[name] for name in sorted(weights))]
