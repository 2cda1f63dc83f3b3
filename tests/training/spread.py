"""Trains tiny runs in one of several processes; started by `torchrun`.

torchrun --nproc-per-node 2 -m tests.training.spread FOLDER
"""

import sys
from pathlib import Path

import torch

from cosformer.tasks import register
from cosformer.training import train
from tests.training.toy import Toy, recall, toy

RUNS = {
    "classification": toy(model={"dropout": 0.0}, steps=6),
    "language": recall(model={"dropout": 0.0}, steps=6),
}


def main():
    register("toy")(Toy)
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)
    for name, run in RUNS.items():
        folder = Path(sys.argv[1]) / name
        train(run, folder, progress=False, results=folder / "results.jsonl")


if __name__ == "__main__":
    main()
