"""Fills a stretch of GPU time with the runs of a plan: several side by side, none of them in vain.

The next entries without a record are given to worker processes. A run is started only where it, and all that
run already, can end before the deadline beside each other; another one where none of these can, for it can
be resumed if its folder is still there next time. Before the deadline all that still train are asked to stop,
and leave a checkpoint.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.plan import NOT_NEEDED, Entry, NotYet, Record, build, by_name, is_done, weights_of
from benchmarks.sharing import Share, ends, slowdown
from benchmarks.slot import Slot, spawn
from cosformer import atomic, reading, record_file
from cosformer.report.document import slug
from cosformer.training import Run, checkpoint
from cosformer.training.run import digest

MOMENT = 5.0  # seconds that less important runs wait for data, which may only have to be looked at
SHORTEST = 10.0  # planned seconds of a run, or of what was left of it, that tell how right plans are
COMPILED = 45  # seconds that a run is planned to take: others use the GPU while it compiles


@dataclass
class Scheduler:
    """
    Args:
        entries: in the order of their importance.
        folder: where unfinished runs, and the records of finished ones, stay from one call to the next.
        out: where records and the log of this call go.
        known, known_failures: records made before, of other machines too, and reasons by name.
        jobs: runs side by side.
        memory: GiB that they may take together.
        deadline: on the clock of time.monotonic().
        grace: seconds before it, for checkpoints of all that still train. With no more than as many left
            until then, nothing is begun that cannot end.
        resume_later: whether unfinished runs may be worth something: the folder will still be there.
        retry: try again what has failed.
        fast: capture forward and backward as a CUDA graph, and compile the layers of runs that are long
            enough (COMPILED); neither where a step waits for the GPU, for neither can contain a wait.
    """

    entries: list[Entry]
    folder: Path
    out: Path
    known: list[Record]
    jobs: int
    memory: float
    deadline: float
    grace: float = 25.0
    resume_later: bool = True
    retry: bool = False
    fast: bool = False
    known_failures: Mapping[str, Record] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)
    state: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.began = self.looked = time.monotonic()
        self.slots: list[Slot] = []
        self.preparer: Slot | None = None
        self.prepared: dict[str, str | None] = {}  # by task and settings: None, or why there is no data
        self.factors: list[float] = []
        self.stopping = False
        self.kept, self.given = self.folder / "records.jsonl", self.out / "records.jsonl"
        self.failures = self.folder / "failures.json"
        self.records = by_name([*self.known, *reading.json_lines(self.kept)])
        own = reading.json_file(self.failures) if self.failures.is_file() else {}
        self.failed: dict[str, Record] = {} if self.retry else {**self.known_failures, **own}

    def work(self) -> None:
        """Until the deadline, or until nothing is left to do."""
        self.out.mkdir(parents=True, exist_ok=True)
        for record in reading.json_lines(self.kept):  # of earlier calls, whose output may have been lost
            record_file.append_once(self.given, record, "id")
        before = {n: signal.signal(n, self._asked) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._warm_up()
            while not self.stopping and self._left() > 0:
                self._count()
                self._start()
                busy = [slot for slot in [*self.slots, self.preparer] if slot is not None and slot.busy]
                if not busy:
                    break
                self._listen(busy, max(0.0, min(1.0, self._left())))
            self._stop()
        finally:
            for slot in [*self.slots, self.preparer]:
                if slot is not None:
                    slot.kill()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _left(self) -> float:
        """Seconds until all are asked to stop."""
        return self.deadline - self.grace - time.monotonic()

    def _warm_up(self) -> None:
        """Starts the workers, which import and set up what they need while the data are prepared."""
        for _ in range(min(self.jobs, len(self.look()))):
            self.slots.append(self._worker(trains=True))

    def _asked(self, number: int, frame: Any) -> None:
        self.stopping = True

    def look(self) -> list[tuple[Entry, Run]]:
        """The entries that could be started, in their order; `state` says in words why the others cannot."""
        ready = []
        for entry in self.entries:
            if any(slot.entry is entry for slot in self.slots):
                self.state[entry.name] = "runs"
                continue
            try:
                run = self._build(entry)
            except NotYet as reason:
                self.state[entry.name] = str(reason)
                continue
            lacking = self.prepared.get(_data_key(run))
            if is_done(entry, run, self.records) and not self._is_wanted_by_others(entry):
                self.state[entry.name] = "recorded"
            elif lacking is not None:
                self.state[entry.name] = f"no data: {lacking}"
            elif self._has_failed(entry, run):
                self.state[entry.name] = f"failed: {self.failed[entry.name]['reason']}"
            elif entry.initial is not None and not self.weights(entry.initial).is_dir():
                self.state[entry.name] = f"waits for the weights of {entry.initial.name}"
            else:
                done = self._share(entry, run)
                self.state[entry.name] = f"cut off at {done:.0%}" if done else "to be run"
                ready.append((entry, run))
        return ready

    def _build(self, entry: Entry) -> Run:
        run = build(entry, self.records, self.failed)
        if not self.fast:
            return run
        compiled = entry.captured and entry.seconds >= COMPILED
        return run.replace(compile=compiled, cuda_graph=entry.captured)

    def _has_failed(self, entry: Entry, run: Run) -> bool:
        return self.failed.get(entry.name, {}).get("digest") == digest(run)

    def path(self, entry: Entry, run: Run) -> Path:
        """The folder of an entry's run: other settings, another folder."""
        return self.folder / f"{slug(entry.name)}-{digest(run)[:8]}"

    def weights(self, entry: Entry) -> Path:
        """Where the weights of a finished entry are kept that others start from."""
        return self.folder.resolve() / "weights" / slug(weights_of(entry, self.records, self.failed))

    def _is_wanted_by_others(self, entry: Entry) -> bool:
        """Whether it has to be run for its weights alone: its record may be another machine's."""
        if not entry.keep or self.weights(entry).is_dir():
            return False
        return any(self._is_missing(e) for e in self.entries if e.initial == entry)

    def _is_missing(self, entry: Entry) -> bool:
        try:
            run = self._build(entry)
        except NotYet as reason:
            return not str(reason).startswith(NOT_NEEDED)
        has_data = self.prepared.get(_data_key(run)) is None
        return has_data and not is_done(entry, run, self.records) and not self._has_failed(entry, run)

    def _share(self, entry: Entry, run: Run) -> float:
        """Of a run that an earlier call has left unfinished: how much of it is done."""
        return max(checkpoint.steps(self.path(entry, run)), default=0) / run.steps

    def _start(self) -> None:
        """Whatever can be started now."""
        while not self.stopping:
            idle = next((slot for slot in self.slots if not slot.busy), None)
            if idle is None and len(self.slots) >= self.jobs:
                return
            chosen = self._choose()
            if chosen is None:
                return
            if idle is None:
                idle = self._worker(trains=True)
                self.slots.append(idle)
            entry, run, planned = chosen
            idle.entry, idle.began, idle.planned, idle.spent = entry, time.monotonic(), planned, 0.0
            self._say(f"begins: {entry.name}, about {ends(self._shares())[-1]:.0f} s")
            idle.connection.send(
                {
                    "kind": "train", "doing": entry.name, "run": run.to_dict(),
                    "initial": None if entry.initial is None else str(self.weights(entry.initial)),
                    "weights": str(self.weights(entry)) if entry.keep else None,
                    "folder": str(self.path(entry, run)), "records": [str(self.kept), str(self.given)],
                    "experiment": {
                        **entry.place(), "digest": digest(run), "tries": list(entry.tries), "jobs": self.jobs,
                    },
                }
            )  # fmt: skip

    def _choose(self) -> tuple[Entry, Run, float] | None:
        """The first entry that can end in time, and lets those that run already do so; else, where none of
        these can and that is worth something, the first one. With its run, and the seconds it takes alone."""
        running = [slot.entry for slot in self.slots if slot.entry is not None]
        free = self.memory - sum(e.memory for e in running)
        late, beside, left = None, self._shares(), self._left()
        alone = ends(beside)
        for entry, run in self.look():
            if entry.memory > free and running:
                continue
            planned = entry.seconds * (1 - self._share(entry, run))
            *others, own = ends([*beside, Share(planned * self._factor(), entry.load)])
            kept = all(x <= left for x, y in zip(others, alone, strict=True) if y <= left)
            can_end = own <= left and kept
            if not self._has_data(run):
                if can_end and self._is_prepared_soon(run):
                    return None
                continue
            if can_end:
                return entry, run, planned
            late = late or (entry, run, planned)
        in_vain = all(x > left for x in alone)
        return late if self.resume_later and in_vain and left > self.grace else None

    def _shares(self) -> list[Share]:
        """What is left of the runs, as planned, the newest last; one that takes longer is about to end."""
        busy = sorted((s for s in self.slots if s.entry is not None), key=lambda s: s.began)
        return [Share(max(1.0, s.planned * self._factor() - s.spent), s.entry.load) for s in busy if s.entry]

    def _count(self) -> None:
        """Adds the time since the last look to what the runs have spent."""
        now, busy = time.monotonic(), [s for s in self.slots if s.entry is not None]
        for slot in busy:
            slot.spent += (now - self.looked) / slowdown([s.entry.load for s in busy if s.entry])
        self.looked = now

    def _factor(self) -> float:
        """How much longer than planned the last runs have taken."""
        return median(self.factors[-5:]) if self.factors else 1.0

    def _has_data(self, run: Run) -> bool:
        """Whether the data of a run's task lies ready; if not, it is made by a process of its own, while
        others train."""
        key = _data_key(run)
        if key in self.prepared:
            return True
        if self.preparer is None:
            self.preparer = self._worker(trains=False)
        if not self.preparer.busy:
            self._say(f"prepares the data of {run.task}")
            self.preparer.task, self.preparer.began = key, time.monotonic()
            self.preparer.connection.send(
                {"kind": "prepare", "doing": run.task, "task": run.task, "settings": run.task_settings}
            )
        return False

    def _is_prepared_soon(self, run: Run) -> bool:
        """Whether its data have been in preparation for a moment only."""
        slot = self.preparer
        return slot is not None and slot.task == _data_key(run) and time.monotonic() - slot.began < MOMENT

    def _worker(self, *, trains: bool) -> Slot:
        threads = max(1, (os.cpu_count() or 1) // (self.jobs + 1))
        return spawn(self.out / "log.txt", threads, trains=trains)

    def _listen(self, busy: list[Slot], seconds: float) -> None:
        """Takes in what workers answer within a time; one that is gone without an answer has failed."""
        answered = wait([slot.connection for slot in busy], seconds)
        self._count()
        for slot in busy:
            if slot.connection in answered:
                try:
                    outcome = slot.connection.recv()
                except (EOFError, ConnectionResetError):
                    slot.process.join(5)
                    how = "stopped" if self.stopping else "failed"
                    outcome = {"outcome": how, "reason": f"the process ended with {slot.process.exitcode}"}
                    self._forget(slot)
                self._note(slot, outcome)

    def _forget(self, slot: Slot) -> None:
        slot.kill()
        if slot is self.preparer:
            self.preparer = None
        else:
            self.slots.remove(slot)

    def _note(self, slot: Slot, outcome: dict[str, Any]) -> None:
        took, how = time.monotonic() - slot.began, outcome["outcome"]
        if slot.task is not None:
            self.prepared[slot.task] = None if how == "finished" else outcome["reason"]
            self._say(f"data of {json.loads(slot.task)[0]}: {outcome.get('reason', f'ready, {took:.0f} s')}")
            slot.task = None
            return
        entry, slot.entry = slot.entry, None
        assert entry is not None
        if how == "finished":
            record = outcome["record"]
            self.records[entry.name] = record
            self.finished.append(entry.name)
            if slot.planned >= SHORTEST:
                self.factors.append(slot.spent / slot.planned)
            metric = record["metric"]
            score = f"{metric['name']} {metric['valid'][metric['name']]:.4f} (valid)"
            self._say(f"ends:   {entry.name}, {score}, {took:.0f} s")
        elif how == "failed":
            run = self._build(entry)
            self.failed[entry.name] = {"digest": digest(run), "reason": outcome["reason"]}
            for path in (self.failures, self.out / self.failures.name):
                atomic.write_json(path, self.failed)
            self._say(f"FAILED: {entry.name}: {outcome['reason']}")
            if slot in self.slots:
                self._forget(slot)  # an error of the GPU stays with its process
        else:
            self._say(f"is cut off: {entry.name}, after {took:.0f} s")

    def _stop(self) -> None:
        """Asks all that train to stop, and waits until shortly before the deadline."""
        self.stopping = True
        end = max(self.deadline - 3, time.monotonic() + 2) if self._cut() else 0
        while (busy := [slot for slot in self.slots if slot.busy]) and time.monotonic() < end:
            self._listen(busy, max(0.0, min(1.0, end - time.monotonic())))

    def _cut(self) -> bool:
        busy = [slot for slot in self.slots if slot.busy]
        for slot in busy:
            slot.process.terminate()
        # Asked to stop long before the deadline, nobody needs longer than the grace.
        self.deadline = min(self.deadline, time.monotonic() + self.grace)
        return bool(busy)

    def _say(self, words: str) -> None:
        print(f"{time.monotonic() - self.began:6.0f} s  {words}", file=sys.stderr, flush=True)


def _data_key(run: Run) -> str:
    return json.dumps([run.task, run.task_settings], sort_keys=True)
