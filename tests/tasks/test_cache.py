"""The cache: whole or not there, once per settings, one process at a time."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from cosformer import tasks
from cosformer.tasks.io import cache, workers
from tests.tasks import tiny


def fill(folder):
    (folder / "part").mkdir()
    (folder / "part" / "one").write_text("1")


def files(root):
    return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())


def test_an_entry_is_built_once_for_each_settings():
    built = []

    def build(folder):
        built.append(folder)
        fill(folder)

    first = cache.entry("kind", {"a": 1, "b": [2, 3]}, build)
    assert cache.entry("kind", {"b": [2, 3], "a": 1}, build) == first, "the order of settings means nothing"
    assert len(built) == 1
    assert files(first) == ["checksums.json", "part/one", "settings.json"]
    others = {
        cache.entry("kind", {"a": 2, "b": [2, 3]}, build),
        cache.entry("other", {"a": 1, "b": [2, 3]}, build),
    }
    assert first not in others
    assert len(built) == 3
    assert '"a": 1' in (first / "settings.json").read_text()


def test_the_final_name_appears_last(tmp_path):
    def build(folder):
        fill(folder)
        assert not [p for p in cache.root().glob("kind/[!.]*") if p.is_dir()]

    assert cache.entry("kind", {}, build).is_dir()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_of_a_failure(error):
    def broken(folder):
        fill(folder)
        raise error

    with pytest.raises(error):
        cache.entry("kind", {}, broken)
    assert list((cache.root() / "kind").iterdir()) == []
    assert files(cache.entry("kind", {}, fill)) == ["checksums.json", "part/one", "settings.json"]


def _slow(queue, kill):
    def build(folder):
        queue.put("built")
        fill(folder)
        if kill:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.2)

    queue.put(str(cache.entry("kind", {}, build)))


def test_two_processes_build_once():
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    both = [context.Process(target=_slow, args=(queue, False)) for _ in range(2)]
    for process in both:
        process.start()
    said = [queue.get(timeout=60) for _ in range(3)]
    for process in both:
        process.join(timeout=60)
    assert said.count("built") == 1
    assert len(set(said)) == 2, "both got the same folder"


def test_a_killed_process_leaves_no_entry_and_no_lock():
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_slow, args=(context.Queue(), True))
    process.start()
    process.join(timeout=60)
    assert process.exitcode == -signal.SIGKILL
    assert files(cache.entry("kind", {}, fill)) == ["checksums.json", "part/one", "settings.json"]


def test_a_folder_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COSFORMER_CACHE", str(tmp_path / "file"))
    with pytest.raises(OSError, match=r"the cache folder .*file cannot be written .*; set COSFORMER_CACHE"):
        cache.entry("kind", {}, fill)


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("COSFORMER_CACHE")
    assert cache.root() == tmp_path / "cosformer"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.root().parts[-2:] == (".cache", "cosformer")


def test_another_file_is_another_entry():
    tiny.write("glue/SST-2/train.tsv", ["sentence\tlabel", *["good\t1"] * 5])
    task = tasks.build("sst2", official=False)
    assert len(task.dataset("train")) == 4
    tiny.write("glue/SST-2/train.tsv", ["sentence\tlabel", *["good\t1"] * 8])
    assert len(task.dataset("train")) == 7


def double(x):
    if x == 13:
        raise ValueError("unlucky")
    return 2 * x


@pytest.mark.parametrize("count", ["1", "2"])
def test_results_come_in_order(monkeypatch, count):
    monkeypatch.setenv("COSFORMER_WORKERS", count)
    assert list(workers.ordered(double, range(12))) == [2 * x for x in range(12)]
    endless = workers.ordered(double, iter(int, 1))
    assert [next(endless) for _ in range(3)] == [0, 0, 0]
    endless.close()
    with pytest.raises(ValueError, match="unlucky"):
        list(workers.ordered(double, range(20)))


def test_number_of_workers(monkeypatch):
    monkeypatch.setenv("COSFORMER_WORKERS", "none")
    with pytest.raises(ValueError, match="COSFORMER_WORKERS must be a positive number of processes"):
        workers.cores()
    monkeypatch.delenv("COSFORMER_WORKERS")
    assert workers.cores() >= 1


def _who(_):
    return os.getpid()


def _work_for_ever(queue):
    os.environ["COSFORMER_WORKERS"] = "2"
    results = workers.ordered(_who, iter(int, 1))
    queue.put({next(results) for _ in range(20)})
    time.sleep(60)


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc")
def test_workers_do_not_outlive_their_parent():
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    parent = context.Process(target=_work_for_ever, args=(queue,))
    parent.start()
    children = queue.get(timeout=60)
    assert all(_runs(pid) for pid in children)
    os.kill(parent.pid, signal.SIGKILL)
    parent.join(timeout=60)
    end = time.monotonic() + 30
    while any(_runs(pid) for pid in children) and time.monotonic() < end:
        time.sleep(0.1)
    left = [pid for pid in children if _runs(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left
