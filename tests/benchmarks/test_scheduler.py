"""Which run a plan starts next: those that can end in time, beside each other."""

import dataclasses
import time

import pytest

from benchmarks.plan import Entry
from benchmarks.scheduler import MOMENT, Scheduler, _data_key
from benchmarks.sharing import Share, ends
from benchmarks.slot import Slot


def test_what_cannot_fit_is_passed_by(tmp_path):
    """A short run goes before a long one that could not end; and never more than the memory holds."""
    long, short = (
        Entry("p", "c", name, "mqar", "cosformer", seconds, memory, scale="tiny")
        for name, seconds, memory in (("long", 1000, 1.0), ("short", 10, 5.0))
    )
    deadline = time.monotonic() + 200
    plan = Scheduler([long, short], tmp_path, tmp_path / "out", [], 2, 8.0, deadline)
    plan._has_data = lambda run: True
    assert plan._choose()[0] is short
    plan.factors = [1.0, 30.0, 30.0]
    assert plan._choose()[0] is long, "thirty times as slow as planned, neither can end"
    plan.factors = []
    plan.slots = [Slot(None, None, entry=dataclasses.replace(short, memory=4.0), planned=10)]
    assert plan._choose() is None, (
        "5 GiB are no longer there, and beside another one nothing is begun in vain"
    )
    plan.slots, plan.entries = [], [long]
    assert plan._choose()[0] is long, "it can be resumed"
    plan.resume_later = False
    assert plan._choose() is None


def test_less_important_runs_wait_a_moment_for_data(tmp_path):
    """Data that lie in the cache are ready at once, and the first entry is then the first to be run."""
    first, second = (
        Entry("p", "c", name, name, "cosformer", 10, 1.0, scale="tiny") for name in ("mqar", "copy")
    )
    plan = Scheduler([first, second], tmp_path, tmp_path / "out", [], 2, 8.0, time.monotonic() + 200)
    runs = [run for _, run in plan.look()]
    plan.prepared[_data_key(runs[1])] = None
    plan.preparer = Slot(None, None, task=_data_key(runs[0]), began=time.monotonic())
    assert plan._choose() is None
    plan.entries = [dataclasses.replace(first, seconds=5000), second]
    assert plan._choose()[0] is second, "the first could not end"
    plan.entries = [first, second]
    plan.preparer.began -= MOMENT
    assert plan._choose()[0] is second
    plan.prepared[_data_key(runs[0])] = None
    assert plan._choose()[0] is first


def test_when_runs_that_share_a_gpu_end():
    assert ends([]) == []
    assert ends([Share(10, 0.5), Share(30, 0.5)]) == [10, 30]
    assert ends([Share(30, 1.0), Share(10, 1.0)]) == [40, 20]
    assert ends([Share(30, 0.8), Share(10, 0.8), Share(10, 0.4)]) == pytest.approx([40, 20, 20])


def test_no_run_keeps_another_from_ending(tmp_path):
    """Two that fill the GPU take twice as long beside each other."""
    first, second, small = (
        Entry("p", "c", name, "mqar", "cosformer", seconds, 1.0, load, scale="tiny")
        for name, seconds, load in (("first", 100, 1.0), ("second", 60, 1.0), ("small", 20, 1.0))
    )
    plan = Scheduler([second, small], tmp_path, tmp_path / "out", [], 3, 8.0, time.monotonic() + 165)
    plan._has_data = lambda run: True
    running = Slot(None, None, entry=first, planned=100, spent=10)
    plan.slots = [running]
    assert plan._choose()[0] is small, "90 and 60 seconds of work do not fit into 140, 90 and 20 do"
    running.spent = 30
    assert plan._choose()[0] is second
    running.planned = 1000
    assert plan._choose()[0] is second, "what cannot end anyway does not stand in the way"
    plan.entries = [dataclasses.replace(second, seconds=500)]
    assert plan._choose()[0] is plan.entries[0], "nor is it kept from ending by what cannot either"
    plan.entries = [second, small]
    running.planned, running.spent, plan.looked = 85, 0.0, time.monotonic() - 10
    plan.slots.append(Slot(None, None, entry=second, planned=60))
    plan._count()
    assert [slot.spent for slot in plan.slots] == pytest.approx([5, 5], abs=0.2)
    assert plan._choose() is None
