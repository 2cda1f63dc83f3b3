"""Several processes do what one does, share what they are told to, and end together."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file

from cosformer import reading
from cosformer.models import CosformerForCausalLM
from cosformer.training import best, checkpoint, train
from tests.training.spread import KILLED, RUNS, STEPS

ROOT = Path(__file__).resolve().parents[2]
AGAIN = r"start the run again to continue from its newest checkpoint\."


def start(*words):
    """Python in a process of its own; what it said."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    return subprocess.run(
        [sys.executable, "-m", *map(str, words)],
        cwd=ROOT, env=environment | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
    )  # fmt: skip


@pytest.fixture(scope="session")
def spread(tmp_path_factory):
    """A folder with all of them, and how they ended. They take a minute of a core: whichever process of the
    tests wants them first makes them for all, and tests only read them."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "spread"
    with FileLock(f"{folder}.lock"):
        if not (folder / "ends.json").is_file():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            done = start("tests.training.spread", folder)
            assert done.returncode == 0, done.stderr
    return folder, json.loads((folder / "ends.json").read_text())


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same runs, each in one process."""
    folder = tmp_path_factory.mktemp("alone")
    for name, run in RUNS.items():
        run = run.replace(sequence_parallel=1)
        train(run, folder / name, progress=False, results=folder / name / "results.jsonl")
    return folder


def figures(folder, steps=STEPS):
    lines = reading.json_lines(folder / "log.jsonl")
    values = [[line["loss"], line["grad_norm"]] for line in lines if "loss" in line]
    assert len(values) == steps
    weights = load_file(folder / checkpoint.name(steps) / "model.safetensors")
    return [torch.tensor(values), *(weights[name] for name in sorted(weights))]


def close(one, two, steps=STEPS, rtol=1e-5, atol=1e-6):
    """Weights within ten times `atol`: where a gradient is next to nothing, AdamW divides it by itself."""
    (losses, *weights), (others, *other_weights) = figures(one, steps), figures(two, steps)
    torch.testing.assert_close(losses, others, rtol=rtol, atol=atol)
    for a, b in zip(weights, other_weights, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=10 * atol)


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_train_as_one(spread, alone, name):
    """Losses, gradients, scores and weights: the batch is divided, and nothing is counted twice or lost. The
    splits have odd sizes."""
    one, two = alone / name, spread[0] / name
    assert spread[1][name]["codes"] == [0, 0], spread[1][name]["said"]
    run = RUNS[name]
    close(one, two, run.steps, *((1e-2, 1e-3) if run.precision == "bf16" else ()))
    records = [reading.json_lines(folder / "results.jsonl") for folder in (one, two)]
    assert [len(r) for r in records] == [1, 1], "one process writes the record"
    if run.precision == "fp32":
        assert records[0][0]["metric"] == records[1][0]["metric"]
    assert [r[0]["processes"] for r in records] == [1, 2]
    for figure in ("tokens", "parameters"):
        assert records[0][0][figure] == records[1][0][figure]
    assert (two / checkpoint.name(run.steps) / "random-1.safetensors").is_file()
    held = [reading.json_file(two / f"held-{rank}.json") for rank in (0, 1)]
    for own, of_all, recomputes in held:
        assert own == of_all if not run.shard else own < 0.6 * of_all
        assert recomputes == run.gradient_checkpointing


@pytest.mark.parametrize("processes", [3, 4])
def test_texts_over_three_and_two_groups_of_two_that_share_weights_too(spread, alone, processes):
    name = f"split on {processes}"
    assert spread[1][name]["codes"] == [0] * processes, spread[1][name]["said"]
    folders = (alone / "split", spread[0] / name)
    close(*folders)
    records = [reading.json_lines(folder / "results.jsonl")[0] for folder in folders]
    assert records[0]["metric"] == records[1]["metric"]
    assert records[0]["tokens"] == records[1]["tokens"]
    for said in spread[1]["no groups of 2"]["said"]:
        assert_says(said, "3 processes cannot be divided into groups of sequence_parallel = 2")


def test_a_checkpoint_of_shards_is_a_saved_model(spread, alone):
    folder = best(spread[0] / "sharded")
    assert sorted(p.name for p in folder.iterdir()) == sorted(
        ["random-1.safetensors", *(p.name for p in best(alone / "sharded").iterdir())]
    )
    net = CosformerForCausalLM.from_pretrained(folder)
    assert net.config.architectures == ["CosformerForCausalLM"]
    assert net.lm_head.weight is net.model.embed_tokens.weight
    expected = CosformerForCausalLM.from_pretrained(best(alone / "sharded")).state_dict()
    for name, x in net.state_dict().items():
        torch.testing.assert_close(x, expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "processes"), [("language", 4), ("sharded", 2)])
def test_one_is_killed_and_the_run_goes_on_with_any_number(spread, name, processes):
    """On the same number it ends the same to the bit."""
    folder, ends = spread
    end = ends[f"{name}, killed"]
    assert end["codes"] == [1, -9, 1, 1][:processes]
    assert end["seconds"] < 30
    for rank in {*range(processes)} - {1}:
        said = f"rank 1 of {processes} failed: it ended without a word .* Rank {rank} was stopped"
        assert_says(end["said"][rank], said)
    for size in (1, 2, 4):
        resumed = f"{name}, resumed on {size}"
        assert set(ends[resumed]["codes"]) == {0}, ends[resumed]["said"]
        assert [
            e["step"]
            for e in reading.json_lines(folder / resumed / "log.jsonl")
            if e.get("event") == "resumed"
        ]
        close(folder / name, folder / resumed)
    again, never = f"{name}, resumed on {processes}", name if processes == 2 else f"{name} on {processes}"
    assert ends[never]["codes"] == [0] * processes
    for a, b in zip(figures(folder / never), figures(folder / again), strict=True):
        assert torch.equal(a, b)


def assert_says(said, pattern):
    last = said.strip().splitlines()[-1]
    assert re.search(pattern, last), said


def test_a_process_that_fails_ends_the_others_with_its_reason(spread):
    end = spread[1]["fails"]
    assert end["codes"] == [1, 1, 1]
    assert_says(end["said"][1], "OSError: the disk is on fire")
    for rank in (0, 2):
        assert_says(
            end["said"][rank],
            rf"PeerFailed: rank 1 of 3 failed: OSError: the disk is on fire\. Rank {rank} was .* {AGAIN}",
        )


def test_a_process_that_cannot_be_told_is_ended(spread):
    end = spread[1]["waits"]
    assert end["codes"] == [1, -9]
    assert end["seconds"] < 30
    assert_says(end["said"][0], rf"^error: rank 1 of 2 failed: it ended without a word .* {AGAIN}")


@pytest.mark.parametrize("lost", [0, 1])
def test_a_process_lost_before_all_have_met_ends_the_others(spread, lost):
    """Also without a launcher that would miss it."""
    for name, words in (
        (f"rank {lost} never comes", r"rank {} of 4 waited for the others, and not all have come within 3 s"),
        (f"rank {lost}, met", f"rank {lost} of 4 failed: it ended without a word .* Rank {{}} was stopped"),
    ):
        end = spread[1][name]
        assert end["codes"] == [-9 if rank == lost else 1 for rank in range(4)]
        assert end["seconds"] < 30
        for rank in {*range(4)} - {lost}:
            assert_says(end["said"][rank], words.format(rank))


def test_groups_that_do_not_fit_are_refused(spread):
    for said in spread[1]["three"]["said"]:
        assert_says(said, "batch must be a multiple of accumulation times processes, 2 × 3, but got 8")
    for said in spread[1]["another"]["said"]:
        assert_says(said, "rank 1 of 2 was started with another run than rank 0")


@pytest.mark.thorough
def test_launched_by_accelerate_with_shards_one_is_killed(tmp_path):
    """By the file that the documentation names; the launcher asks the others to stop, too."""
    began, config = time.monotonic(), ROOT / "examples" / "fsdp2.yaml"
    launched = ["accelerate.commands.launch", "--config_file", config, "--main_process_port", "0", "-m"]
    done = start(*launched, "tests.training.spread", tmp_path / "run")
    assert done.returncode == 1
    assert time.monotonic() - began < 60, "imports included"
    assert "PeerFailed: rank 1 of 2 failed: it ended without a word" in done.stderr
    assert checkpoint.newest(tmp_path / "run").name == checkpoint.name(KILLED - 1)
    own, of_all, recomputes = reading.json_file(tmp_path / "run" / "held-0.json")
    assert own < 0.6 * of_all
    assert recomputes
