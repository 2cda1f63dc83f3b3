"""What training costs beside the bare model, and what a launcher costs where it starts one process: tokens
per second of the same run by itself, and as the one process of a launcher, with weights to share (FSDP2).

    PYTHONPATH=src python3 -m benchmarks.one_rank --out one_rank.json
"""

import argparse
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch

from benchmarks import enwik8_plan
from benchmarks.compiled import variant
from benchmarks.record import check_out, header
from benchmarks.terminal import Parser
from benchmarks.training import bare
from cosformer.atomic import write_json
from cosformer.cli.parser import number, positive_int
from cosformer.tasks.io.sources import DataError
from cosformer.training import Run, train

FORMAT = "cosformer one rank benchmark 2"
WAYS = ("bare", "alone", "launched")


@contextmanager
def launched() -> Iterator[None]:
    """As the one process of `torchrun --nproc-per-node 1`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    with patch.dict(os.environ, told):
        try:
            yield
        finally:
            torch.distributed.destroy_process_group()


def speed(way: str, run: Run, seconds: float) -> float:
    """Tokens per second."""
    if way == "bare":
        return bare(run, seconds)
    with tempfile.TemporaryDirectory() as folder, nullcontext() if way == "alone" else launched():
        own = run.replace(shard=way == "launched")
        return train(own, folder, progress=False, results=Path(folder) / "results.jsonl")["tokens_per_s"]


def measure(
    run: Run, rounds: int, seconds: float, save: Callable[[dict[str, Any]], None] = lambda found: None
) -> dict[str, Any]:
    """All ways in turn, so that a slow spell hits all of them; shares are of the medians. `save` is called
    after every round."""
    for way in WAYS:
        speed(way, run.replace(steps=10), 0.1)  # compiles kernels, prepares data, meets NCCL
    found: list[dict[str, float]] = []
    for _ in range(rounds):
        found.append({way: speed(way, run, seconds) for way in WAYS})
        save(shares(run, found))
    return shares(run, found)


def shares(run: Run, found: list[dict[str, float]]) -> dict[str, Any]:
    middle = {way: median(each[way] for each in found) for way in WAYS}
    return {
        "settings": run.to_dict(),
        "tokens_per_s": middle,
        "rounds": found,
        "share_of_bare": middle["alone"] / middle["bare"],
        "share_of_alone": middle["launched"] / middle["alone"],
    }


def main(words: list[str] | None = None) -> None:
    parser = Parser(prog="python -m benchmarks.one_rank", description=__doc__.split("\n\n")[0])
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    parser.add_argument(
        "--variant", default=enwik8_plan.OURS, choices=enwik8_plan.VARIANTS, metavar="VARIANT",
        help="a name of benchmarks/enwik8_plan.py",
    )  # fmt: skip
    parser.add_argument("--steps", type=positive_int, default=150, help="of each run")
    parser.add_argument("--rounds", type=positive_int, default=3)
    parser.add_argument(
        "--batch_size", type=positive_int, default=32, help="more where the host sets the pace"
    )
    parser.add_argument("--seconds", type=number(0, 3600), default=3.0, help="that the bare model runs for")
    parser.add_argument("--compile", action="store_true", help="compile the layers, in all ways")
    parser.add_argument("--out", type=Path, help="a JSON file")
    args = parser.parse_args(words)
    check_out(parser, args.out)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    run = variant(
        args.variant, steps=args.steps, eval_every=args.steps, save_every=args.steps, compile=args.compile,
        task_settings={"length": 1024, "held_out": 2**16},
    ).replace(batch_size=args.batch_size)  # fmt: skip

    def save(found: dict[str, Any]) -> None:
        if args.out is not None:
            write_json(args.out, header(FORMAT, device) | found)

    try:
        found = measure(run, args.rounds, args.seconds, save)
    except DataError as error:
        parser.error(str(error))
    for way, value in found["tokens_per_s"].items():
        print(f"{way:8} {value:12,.0f} tokens/s   of", ", ".join(f"{r[way]:,.0f}" for r in found["rounds"]))
    print(f"alone of bare {found['share_of_bare']:.1%}; launched of alone {found['share_of_alone']:.1%}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nStopped.")
