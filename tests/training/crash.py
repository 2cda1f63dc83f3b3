"""Trains a tiny run again and again, killing it in as many ways, and says how each ended.

    python -m tests.training.crash FOLDER

One process imports everything once; every stretch of a run is a fork of it. A stretch is told when to die: a
dict with `step` (after so many updates), `flush` or `manifest` (at that call of fsync in the stretch, of any
file or of a manifest, which is then cut off), `rename` (just before or after checkpoint 8 gets its name),
`record` (tested and logged, just before the record is written), `after` (seconds, by another process) or
`interrupt` (Ctrl-C at a step, which is no death). Every list of them is one run, resumed after each, and once
more to its end.
"""

import gc
import hashlib
import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import torch

from cosformer import atomic, record_file
from cosformer.tasks import register
from cosformer.training import Interrupted, checkpoint, train
from cosformer.training.folder import RECORD
from cosformer.training.loop import Loop
from tests.training.toy import Toy, toy

DEATHS = {
    "between steps": [{"step": 2}, {"step": 7}, {"step": 9}, {"step": 12}, {"record": True}],
    "while saving": [{"flush": 9}, {"manifest": 2}, {"rename": "before"}, {"rename": "after"}, {"flush": 14}],
    # Ctrl-C first: after a kill by the clock the run may be past its step.
    "in an evaluation": [{"interrupt": 6}, {"interrupt": 12}],
    "at any moment": [{"interrupt": 5}, {"after": 0.3}, {"after": 0.4}],
}


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def arm(death):
    """Arranges for this stretch to die."""
    update, backward, test = Loop.update, Loop.backward, Loop.test

    def updated(self, step):
        if step == death.get("interrupt"):
            del death["interrupt"]
            os.kill(os.getpid(), signal.SIGINT)
        return update(self, step)

    def begun(after):
        def dies(self, *args):
            if self.status.step == death.get("step"):
                die()
            return after(self, *args)

        return dies

    Loop.update, Loop.backward, Loop.test = updated, begun(backward), begun(test)
    flush, rename, count = atomic.flush, Path.rename, {"flush": 0, "manifest": 0}

    def counted(path):
        count["flush"] += 1
        count["manifest"] += path.name == checkpoint.MANIFEST
        if count["flush"] == death.get("flush") or count["manifest"] == death.get("manifest"):
            path.write_bytes(path.read_bytes()[:-5]) if path.is_file() else None
            die()
        flush(path)

    def renamed(self, target):
        named = Path(target).name.startswith("checkpoint-8")
        if named and death.get("rename") == "before":
            die()
        done = rename(self, target)
        if named and death.get("rename") == "after":
            die()
        return done

    write_json = atomic.write_json

    def written(path, *args, **kwargs):
        if path.name == RECORD and "record" in death:
            die()
        write_json(path, *args, **kwargs)

    atomic.write_json = written
    atomic.flush = record_file.flush = checkpoint.flush = counted
    Path.rename = renamed


def note_samples(folder):
    """Every update's samples go to samples.jsonl."""
    base = Loop.backward

    def noted(self, parts):
        digest = hashlib.sha256(b"".join(p["input_ids"].numpy().tobytes() for p in parts)).hexdigest()
        with (folder / "samples.jsonl").open("a") as file:
            file.write(json.dumps([self.status.step, digest]) + "\n")
        return base(self, parts)

    Loop.backward = noted


def stretch(folder, death):
    """One stretch in a process of its own; how it ended."""
    folder.mkdir(parents=True, exist_ok=True)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            note_samples(folder)
            arm(death)
            train(toy(), folder, progress=False, results=folder / "results.jsonl")
            code = 0
        except Interrupted:
            code = 3
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    if "after" in death:
        time.sleep(death["after"] * random.uniform(0.5, 1.5))
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main():
    register("toy")(Toy)
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)
    gc.freeze()  # what was imported need not be searched in each fork
    base, ends = Path(sys.argv[1]), {}
    ends["never"] = [stretch(base / "never", {})]
    for name, deaths in DEATHS.items():
        folder = base / name.replace(" ", "-")
        ends[name] = [stretch(folder, death) for death in [*deaths, {}]]
    (base / "ends.json").write_text(json.dumps(ends))


if __name__ == "__main__":
    main()
