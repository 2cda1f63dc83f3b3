"""Trains tiny runs in several processes in as many ways, and leaves what came of them.

    python -m tests.training.spread FOLDER

One process imports everything once; every process of a run is a fork of it, with the environment that
`torchrun` would give it. Under a launcher itself, it is one process of a run whose rank 1 is killed.
"""

import contextlib
import gc
import json
import os
import shutil
import socket
import sys
import time
import traceback
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from cosformer import peers
from cosformer.tasks import register
from cosformer.training import train
from cosformer.training.loop import Loop
from cosformer.training.mesh import Mesh
from tests.training.crash import die
from tests.training.toy import Toy, recall, toy

STEPS, KILLED = 20, 13
STILL = {"model": {"dropout": 0.0}, "steps": STEPS, "workers": 0}
RUNS = {
    "classification": toy(**STILL),
    "language": recall(**STILL, save_every=2),
    # Two layers, of which each is a group of its own, and weights that are tied. Of the validation split,
    # one process has two batches, and the other one.
    "sharded": recall(
        **STILL | {"model": {"dropout": 0.0, "num_hidden_layers": 2, "tie_word_embeddings": True}},
        save_every=2, shard=True, gradient_checkpointing=True, eval_batch_size=5,
    ),
    "sharded bf16": toy(**STILL | {"steps": 6}, shard=True, precision="bf16"),
    "sharded, compiled": recall(
        **STILL | {"model": {"dropout": 0.0, "num_hidden_layers": 2}}, shard=True, compile=True,
        compile_backend="aot_eager",
    ),
    # Both processes compute the same samples, each a half of every text.
    "split": recall(
        **STILL | {"model": {"dropout": 0.0, "conv_size": 3, "num_hidden_layers": 3, "position": "rotary",
                             "attention_parameters": [{}, {}, {"windows": [3, None]}]}},
        attention=["cosformer", "softmax", "cosformer"], sequence_parallel=2,
    ),
    "split classification": toy(
        **STILL | {"model": {"dropout": 0.0, "attention_parameters": {"windows": [3, None]}}},
        sequence_parallel=2, shard=True,
    ),
}  # fmt: skip


def group(size, folder, run, **happens):
    """A run in so many processes; how each ended, and what it said. `happens`: a function of its Loop for
    each rank that something happens to, called before every update; or, as `early_1`, one that is called
    before the processes have met."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir(parents=True, exist_ok=True)
    children, began = [], time.monotonic()
    for rank in range(size):
        child = os.fork()
        if child == 0:
            code = 1
            with (folder / f"said-{rank}.txt").open("w") as said, contextlib.redirect_stderr(said):
                os.environ.update(
                    RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size),
                    MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1",
                )  # fmt: skip
                try:
                    happens.get(f"early_{rank}", dict)()
                    prepare(folder, rank, happens.get(f"rank_{rank}"))
                    own = run(rank) if callable(run) else run
                    train(own, folder, progress=False, results=folder / "results.jsonl")
                    code = 0
                except BaseException:
                    traceback.print_exc()
            os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    said = [(folder / f"said-{rank}.txt").read_text() for rank in range(size)]
    return {"codes": codes, "said": said, "seconds": time.monotonic() - began}


def prepare(folder, rank, happens):
    """Notes how many weights this process holds; lets happen what is to."""
    backward = Loop.backward

    def watched(self, parts):
        held = [p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in self.net.parameters()]
        noted = [sum(held), self.net.num_parameters(), self.net.is_gradient_checkpointing]
        (folder / f"held-{rank}.json").write_text(json.dumps(noted))
        if happens is not None:
            happens(self)
        return backward(self, parts)

    Loop.backward = watched


def killed(loop):
    if loop.status.step == KILLED:
        die()


def killed_when_met():
    """Known to the others, but not yet to gloo."""
    Mesh.__init__ = lambda *args: die()


def fails(loop):
    if loop.status.step == KILLED:
        raise OSError("the disk is on fire")


def waits(loop):
    """As in a collective that nothing ends, until its time is over."""
    peers.GRACE = 0.5
    if loop.status.step == KILLED:
        time.sleep(60)


def main():
    register("toy")(Toy)
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)
    gc.freeze()
    base, ends = Path(sys.argv[1]), {}
    if "RANK" in os.environ:
        base.mkdir(exist_ok=True)
        rank = int(os.environ["RANK"])
        prepare(base, rank, killed if rank else None)
        train(RUNS["language"], base, progress=False, results=base / "results.jsonl")
        return
    for name, run in RUNS.items():
        ends[name] = group(2, base / name, run)
    ends["split on 4"] = group(4, base / "split on 4", RUNS["split"].replace(shard=True))
    ends["split on 3"] = group(3, base / "split on 3", RUNS["split"].replace(sequence_parallel=3))
    ends["no groups of 2"] = group(3, base / "no groups of 2", RUNS["split"])
    # How four sum their gradients depends on where these lie in what is sent; of two it cannot.
    ends["language on 4"] = group(4, base / "language on 4", RUNS["language"])
    for name, processes in (("language", 4), ("sharded", 2)):
        dead = base / f"{name}, killed"
        ends[dead.name] = group(processes, dead, RUNS[name], rank_1=killed)
        for size in (1, 2, 4):
            resumed = Path(shutil.copytree(dead, base / f"{name}, resumed on {size}"))
            ends[resumed.name] = group(size, resumed, RUNS[name])
    language = RUNS["language"]
    ends["fails"] = group(3, base / "fails", language.replace(accumulation=1, batch_size=6), rank_1=fails)
    ends["waits"] = group(2, base / "waits", language, rank_0=waits, rank_1=killed)
    os.environ["COSFORMER_WAIT_S"], peers.GRACE = "3", 1.0
    for rank in (0, 1):
        ends[f"rank {rank} never comes"] = group(
            4, base / f"never {rank}", language, **{f"early_{rank}": die}
        )
        ends[f"rank {rank}, met"] = group(
            4, base / f"met {rank}", language, **{f"early_{rank}": killed_when_met}
        )
    ends["three"] = group(3, base / "three", language)
    ends["another"] = group(2, base / "another", lambda rank: language.replace(log_every=5 + rank))
    (base / "ends.json").write_text(json.dumps(ends))


if __name__ == "__main__":
    main()
