"""Faults in training: a run is killed, stopped, frozen, left without room on its disk, damaged, given another
time or a second run in its folder, at drawn moments. Then it goes on, undisturbed, and must end as the run
that nothing happened to: weights, optimiser, losses and scores the same to the bit, one record.

One process has imported everything, and every stretch of a run is a fork of it. A case is as many runs as it
takes until FAULTS have struck.
"""

import gc
import hashlib
import io
import json
import random
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch

from benchmarks import injected_faults as inject
from benchmarks.injected_faults import Ended, Moment
from cosformer.cli import main

FAULTS = 4
SECONDS = inject.SECONDS
STRETCHES = 12  # at most in a case
KINDS = (*3 * ("kill",), *2 * ("stop",), *2 * ("full disk",), *2 * ("damage",), "freeze", "clock", "two runs")
TRAIN = [
    "train", "mqar", "--scale", "tiny", "steps=8", "save_every=2", "eval_every=4", "log_every=1", "warmup=2",
    "model.hidden_size=16", "model.num_hidden_layers=1", "model.dropout=0.1", "task_settings.train_rows=160",
    "task_settings.valid_rows=8", "task_settings.test_rows=8", "--folder", inject.FOLDER,
    "--results", "results.jsonl",
]  # fmt: skip
# How a stretch may end, by what struck it; 0 is always right.
CODES = {"kill": (-9,), "stop": (130, -15), "full disk": (2,), "damage": (2,), "two runs": (2,)}
FREE = (
    "id", "wall_time_s", "tokens_per_s", "peak_memory_bytes", "peak_memory_of", "date", "commit", "hardware",
)  # fmt: skip


class Wrong(Exception):
    """(end, what was said)"""


def prepare(base: Path) -> None:
    """The run that nothing happens to, and how many things it does in its folder."""
    folder = base / "undisturbed"
    folder.mkdir(parents=True)
    torch.backends.mkldnn.set_flags(False)  # as in the tests: the same products on every machine
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        main([*TRAIN[:-4], "--folder", str(base / "first"), "--results", str(base / "first.jsonl")])
    gc.freeze()  # all is imported now; a child that collects garbage would copy all memory
    moments: list[Moment] = []

    def count() -> int:
        code = main(TRAIN)
        Path("things").write_text(str(moments[0].count))
        return code

    def arm(told: int) -> None:
        moments.append(Moment(lambda: None, None, None, told))

    ended = inject.finish(inject.start(count, arm, folder))
    if ended.code:
        raise RuntimeError(f"the run failed, though nothing had happened to it yet: {ended.said}")
    (base / "truth.json").write_text(json.dumps(outcome(folder)))


def outcome(folder: Path) -> dict[str, Any]:
    """All that a run leaves and that no clock decides."""
    run = folder / inject.FOLDER
    last = max(run.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    record = json.loads((run / "record.json").read_text())
    recorded = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    losses = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines() if '"loss"' in line]
    states = sorted(last.glob("*.safetensors"))
    return {
        "checkpoint": last.name,
        "states": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in states},
        "record": {name: value for name, value in record.items() if name not in FREE},
        "records": [r["id"] == record["id"] for r in recorded],
        "losses": [(r["step"], r["loss"]) for r in losses],
    }  # fmt: skip


def run(base: Path, folder: Path, rng: random.Random) -> dict[str, Any]:
    """One case: {what, end, said, kinds}; the kinds of faults that struck."""
    things = int((base / "undisturbed" / "things").read_text())
    truth = json.loads((base / "truth.json").read_text())
    struck: list[str] = []
    told: list[str] = []
    try:
        for life in range(STRETCHES):
            mine = folder / str(life)
            mine.mkdir()
            _life(mine, things, truth, rng, struck, told)
            shutil.rmtree(mine, ignore_errors=True)
            if len(struck) >= FAULTS:
                break
        end, said = "identical", ""
    except Wrong as wrong:
        end, said = wrong.args
    return {"what": "; ".join(told)[-600:], "end": end, "said": said[-2000:], "kinds": struck}


def _life(
    folder: Path, things: int, truth: dict[str, Any], rng: random.Random, struck: list[str], told: list[str]
) -> None:
    """A run from its beginning to its end, with faults on the way."""
    log_was_damaged = False
    while len(struck) < FAULTS and not (folder / inject.FOLDER / "record.json").exists():
        kind = rng.choice(KINDS)
        if kind == "damage":
            found = inject.damage(folder, rng)
            if found is None:
                continue
            what, back = found
            log_was_damaged |= "log.jsonl" in what
            ended, hit = _stretch(folder, lambda told: None), True
            if ended.code == 2:  # it was refused: with the file put back, the run goes on
                back()
        else:
            # A run that is resumed has less to do.
            number = 1 + int(things * rng.random() ** 2)
            seconds = rng.uniform(0.01, 1) if rng.random() < 0.3 else None
            what = f"{kind} at {f'{seconds:.2f} s' if seconds else number}"
            ended = _struck(kind, folder, None if seconds else number, seconds, rng)
            hit = ended.struck
        told.append(what if hit else f"({what})")
        _judge(kind, ended)
        struck += [kind] if hit else []
    ended = _stretch(folder, lambda told: None)  # where nothing is left to train, it still records that
    if ended.code:
        raise Wrong("lost", f"exit code {ended.code}: {ended.said}")
    try:
        found = json.loads(json.dumps(outcome(folder)))
    except (OSError, ValueError, KeyError) as error:
        raise Wrong("lost", f"{type(error).__name__}: {error}") from error
    for name, expected in truth.items():
        if found[name] != expected and not (name == "losses" and log_was_damaged):
            raise Wrong("otherwise", f"{name}: {found[name]} in place of {expected}")


def _struck(kind: str, folder: Path, number: int | None, seconds: float | None, rng: random.Random) -> Ended:
    act = {
        "kill": lambda: inject.kill,
        "stop": lambda: inject.interrupt(rng),
        "full disk": lambda: inject.fill(rng),
        "clock": lambda: inject.shift_clock(rng),
        "freeze": lambda: inject.pause,
        "two runs": lambda: inject.pause,
    }[kind]()
    second: list[Ended] = []

    def meanwhile() -> None:
        if kind == "two runs":
            second.append(_stretch(folder, lambda told: None))

    ended = _stretch(folder, lambda told: _arm(act, number, seconds, told), meanwhile)
    for other in second:
        _judge(kind, other)
        if other.code == 2 and "in use" not in other.said:
            raise Wrong("no sentence", other.said)
    return ended


def _arm(act: Callable[[], None], number: int | None, seconds: float | None, told: int) -> None:
    Moment(act, number, seconds, told)


def _stretch(folder: Path, arm: Callable[[int], None], meanwhile: Callable[[], None] = lambda: None) -> Ended:
    return inject.finish(inject.start(lambda: main(TRAIN), arm, folder), meanwhile)


def _judge(kind: str, ended: Ended) -> None:
    if ended.hung:
        raise Wrong("hang", ended.said)
    if "Traceback" in ended.said:
        raise Wrong("traceback", ended.said)
    if ended.code and ended.code not in CODES.get(kind, ()):
        raise Wrong("unexpected end", f"{kind}: exit code {ended.code}: {ended.said}")
    if ended.code == 2 and not ended.said.strip().splitlines()[-1].startswith("cosformer train: "):
        raise Wrong("no sentence", ended.said)
