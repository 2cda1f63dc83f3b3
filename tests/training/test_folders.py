"""What a run finds in its folder: nothing of worth, another run, or files that are damaged."""

import logging
import re
import signal

import pytest
import torch

from cosformer import atomic, reading
from cosformer.training import Interrupted, checkpoint, train
from cosformer.training.log import Log
from cosformer.training.loop import Loop
from tests.training.test_crash import log_of, same
from tests.training.toy import Toy, _Texts, toy


def trained(folder, run, **options):
    return train(run, folder, **{"progress": False, "results": folder / "results.jsonl"} | options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    trained(folder, toy(workers=0))
    return folder


def test_what_failed_before_its_first_checkpoint_is_taken_over(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "backward", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            trained(tmp_path, toy(workers=0, seed=5))
    before = reading.json_file(tmp_path / "run.json")
    assert trained(tmp_path, toy(workers=0, steps=1))["seed"] == 0
    after = reading.json_file(tmp_path / "run.json")
    assert after["run"]["seed"] == 0
    assert after["id"] != before["id"], "it is another run"


@pytest.mark.parametrize("left", ["checkpoint-1", "record.json"])
def test_what_has_come_to_something_is_not(tmp_path, left):
    atomic.write_json(tmp_path / "run.json", {"id": "x", "run": toy(seed=5).to_dict()})
    atomic.write_json(tmp_path / left / "run.json" if left == "checkpoint-1" else tmp_path / left, {})
    with pytest.raises(ValueError, match=r"seed differ\. .*\(resume=False; --fresh on the command line\)"):
        trained(tmp_path, toy())
    assert (tmp_path / left).exists()


def test_a_checkpoint_is_no_folder_to_train_in(tmp_path):
    atomic.write_json(tmp_path / checkpoint.MANIFEST, {"files": {}})
    atomic.write_json(tmp_path / "run.json", toy().to_dict())
    with pytest.raises(FileExistsError, match=f"Give the run's folder, {re.escape(str(tmp_path.parent))}"):
        trained(tmp_path, toy(seed=5))


@pytest.mark.parametrize(
    ("text", "says"), [('{"a":', "is damaged: it is not JSON .*--fresh"), ("{}", "holds no run.*--fresh")]
)
def test_a_damaged_run_is_named(tmp_path, text, says):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ValueError, match=f"{re.escape(str(tmp_path / 'run.json'))} {says}"):
        trained(tmp_path, toy())
    assert trained(tmp_path, toy(workers=0, steps=1), resume=False)["steps"] == 1, "what it advises helps"


def test_a_damaged_record_is_named_and_can_be_made_again(tmp_path, monkeypatch):
    made = trained(tmp_path, toy(workers=0, steps=2))
    (tmp_path / "record.json").write_text('{"a":')
    with pytest.raises(ValueError, match=r"record.json is damaged: .* Remove it: .* not trained"):
        trained(tmp_path, toy(workers=0, steps=2))
    (tmp_path / "record.json").unlink()
    monkeypatch.setattr(Loop, "backward", lambda *args: pytest.fail("trained again"))
    assert trained(tmp_path, toy(workers=0, steps=2))["metric"] == made["metric"]


def test_without_a_whole_checkpoint_it_says_that_it_starts_again(whole, tmp_path, caplog, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "test", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            trained(tmp_path, toy(workers=0))
    damaged = [checkpoint.name(step) for step in checkpoint.steps(tmp_path)]
    for name in damaged:
        (tmp_path / name / "model.safetensors").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        trained(tmp_path, toy(workers=0))
    said = [r.getMessage() for r in caplog.records if str(tmp_path) in r.getMessage()]
    assert [m for m in said if "none before it" in m] == [m for m in said if damaged[0] in m]
    assert len(said) == len(damaged) + 1, "each once"
    assert said[-1] == f"No checkpoint in {tmp_path} is whole: the run starts again from step 0."
    same(tmp_path, whole)
    assert checkpoint.damage(tmp_path / checkpoint.name(12)) is None


@pytest.mark.parametrize(
    ("split", "step"), [("valid", 6), ("valid", 12), ("test", 12)], ids=["midway", "last", "test"]
)
def test_ctrl_c_in_an_evaluation_stops_it_and_it_is_made_later(whole, tmp_path, split, step):
    """Between two batches; what comes out in the end is the same, and no step is made twice."""
    run, batches = toy(workers=0, eval_batch_size=4), []

    def press(event):
        if event["step"] == step and event.get("evaluating", "").startswith(split):
            batches.append(event["evaluating"])
            if len(batches) == 2:
                signal.raise_signal(signal.SIGINT)

    for _ in range(2):  # the second time in what catches up
        batches.clear()
        with pytest.raises(Interrupted, match=f"stopped at step {step} of 12"):
            trained(tmp_path, run, progress=press)
        assert batches == [f"{split} 0%", f"{split} 17%"]
        assert checkpoint.newest(tmp_path).name == checkpoint.name(step)
    trained(tmp_path, run)
    same(tmp_path, whole)
    status = reading.json_file(checkpoint.newest(tmp_path) / "status.json")
    expected = reading.json_file(checkpoint.newest(whole) / "status.json")
    for name in ("step", "best_step", "best", "waited", "unscored", "tokens"):
        assert status[name] == expected[name], name


def test_scores_that_a_crash_kept_from_their_checkpoint_are_forgotten(tmp_path):
    log = Log(tmp_path)
    for line in ({"loss": 1.0}, {"event": "valid"}):
        log.write(6, **line)
    log.rewind(6)
    assert len(log_of(tmp_path)) == 2
    log.rewind(6, unscored=True)
    assert log_of(tmp_path) == [{"step": 6, "loss": 1.0}]


def test_a_manifest_that_leads_elsewhere_is_not_followed(tmp_path):
    """A device has no end: whoever reads it to compute a checksum never comes back."""
    (tmp_path / "endless").symlink_to("/dev/zero")
    for name, says in {
        "/dev/zero": "lies elsewhere",
        "../x": "lies elsewhere",
        "endless": "ordinary",
    }.items():
        atomic.write_json(tmp_path / checkpoint.MANIFEST, {"files": {name: {"bytes": 0, "sha256": ""}}})
        assert says in checkpoint.damage(tmp_path)


def stopped(folder, run):
    """A run that was stopped behind its first checkpoint."""

    def stop(event):
        if 0 < event["step"] < 12:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted):
        trained(folder, run, progress=stop)
    assert checkpoint.newest(folder) is not None


@pytest.mark.parametrize("data", ["device", "loader"])
def test_a_run_does_not_go_on_with_other_data(tmp_path, data, monkeypatch):
    """Neither with more or fewer samples nor with others; with the same, wherever they are kept, it does."""
    run = toy(workers=0, data=data)
    stopped(tmp_path, run)
    own = Toy.dataset
    for change, says in (
        (lambda task, split: _Texts(24, 0), "the train split had 23 samples, and has 24"),
        (lambda task, split: _Texts(len(own(task, split)), 77), "had 23 samples, and has 23 other ones"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(Toy, "dataset", change)
            with pytest.raises(ValueError, match=f"the data have changed since .* {says}. Put the data back"):
                trained(tmp_path, run)
    assert checkpoint.newest(tmp_path) is not None
    other = "device" if data == "loader" else "loader"
    trained(tmp_path, run.replace(data=other))


def test_samples_that_are_drawn_each_time_are_counted_alone(tmp_path, monkeypatch):
    class Drawn(_Texts):
        def __getitem__(self, index):
            return {"input_ids": torch.randint(2, (9,)), "labels": torch.tensor(index % 2)}

    monkeypatch.setattr(Toy, "dataset", lambda task, split: Drawn(23, 0))
    stopped(tmp_path, toy(workers=0, data="loader"))
    trained(tmp_path, toy(workers=0, data="loader"))


def test_a_folder_of_an_earlier_version_goes_on(tmp_path):
    run = toy(workers=0)
    stopped(tmp_path, run)
    saved = reading.json_file(tmp_path / "run.json")
    del saved["data"]
    atomic.write_json(tmp_path / "run.json", saved)
    trained(tmp_path, run)
