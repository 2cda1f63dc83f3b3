"""`cosformer info` is right where things are missing, and its check notices a backend that is wrong."""

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import cosformer.check
from cosformer.check import CASES, Case, check, examine
from cosformer.cli import info, main
from cosformer.ops import cosformer_attention
from cosformer.ops.backends import NotServed

ROOT = Path(__file__).parents[2]

# A process in which some packages cannot be found, as if they were not installed.
BARE = """
import sys, importlib.metadata
absent = sys.argv[1].split(",")
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
found = importlib.metadata.version
def version(name):
    if name in absent:
        raise importlib.metadata.PackageNotFoundError(name)
    return found(name)
import torch
for name in [m for m in sys.modules if m.partition(".")[0] in absent]:
    del sys.modules[name]
sys.meta_path.insert(0, Absent())
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in absent else find(name, package)
importlib.metadata.version = version
from cosformer.cli import main
sys.exit(main(["info", "--json", "--check"]))
"""


def test_without_triton_and_without_the_models_extra():
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", BARE, "triton,transformers,tokenizers"],
        env=environment | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    found = {b["name"]: b for b in data["backends"]}
    assert not found["triton"]["available"]
    assert "triton is not installed" in found["triton"]["reason"]
    assert data["extras"]["models"] == ["tokenizers", "transformers"]
    assert data["extras"]["triton"] == ["triton"]
    assert data["versions"]["transformers"] is None
    checked = {v["backend"] for v in data["check"] if v["passed"]}
    assert checked == {"chunked", "reference"}
    assert sum(v["seconds"] for v in data["check"]) < 10 * 60


def test_every_available_backend_is_right():
    threads = torch.get_num_threads()
    verdicts = check()
    assert torch.get_num_threads() == threads
    kernels = {"triton"} if not torch.cuda.is_available() else set()  # interpreted: the next test
    assert {v.backend for v in verdicts} == {b.name for b in cosformer.backends() if b.available} - kernels
    for verdict in verdicts:
        assert verdict.passed, verdict
        # One token after a state is not for the kernels for Hopper.
        assert verdict.refused == (1 if verdict.backend == "hopper" else 0)
        assert verdict.cases + verdict.refused >= len(CASES)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the test above runs them all on the GPU")
def test_interpreted_kernels_are_examined_too(monkeypatch):
    small = (Case("causal", 9, 9, True), Case("windows", 9, 9, True, windows=(3, None)))
    monkeypatch.setattr(cosformer.check, "CASES", small)
    assert examine("triton", "cpu").passed


def wrong(change):
    def attend(q, k, v, **how):
        found = cosformer_attention(q, k, v, **how)
        return (change(found[0]), found[1]) if isinstance(found, tuple) else change(found)

    return attend


def with_windows(change):
    def attend(q, k, v, **how):
        if how["windows"] is not None:
            how["windows"] = change(how["windows"])
        return cosformer_attention(q, k, v, **how)

    return attend


def without_past_keys(q, k, v, **how):
    state = how.get("state")
    if state is not None and state.keys is not None:
        how["state"] = replace(state, keys=torch.zeros_like(state.keys))
    return cosformer_attention(q, k, v, **how)


@pytest.mark.parametrize(
    ("attend", "case"),
    [
        (wrong(lambda out: out * 1.0001), "causal"),
        (wrong(lambda out: out.detach() + 0 * out), "causal"),
        (wrong(lambda out: out / 0 * 0), "causal"),
        (lambda q, k, v, **how: cosformer_attention(q, k, v, **how | {"causal": True}), "bidirectional"),
        (
            lambda q, k, v, **how: cosformer_attention(
                q, k.nan_to_num(1.0), v.nan_to_num(1.0), **how | {"key_mask": None}
            ),
            "padded",
        ),
        (lambda q, k, v, **how: cosformer_attention(q, k, v, **how | {"cu_seqlens": None}), "packed"),
        (lambda q, k, v, **how: cosformer_attention(q, k, v, **how | {"state": None}), "cut"),
        (with_windows(lambda w: None), "windows, causal"),
        (with_windows(lambda w: (4, *w[1:])), "windows, causal"),
        (with_windows(lambda w: (w[0], 66, *w[2:])), "windows, causal"),
        (with_windows(lambda w: (*w[:2], 384, *w[3:])), "windows, causal"),
        (with_windows(lambda w: (*w[:3], 384)), "windows, causal"),
        (without_past_keys, "windows, cut"),
    ],
    ids=[
        "a little off", "no gradients", "NaN", "always causal", "mask ignored", "not packed", "state lost",
        "windows ignored", "narrow window too wide", "window too wide", "wide window too wide",
        "window for a head without", "past keys lost",
    ],
)  # fmt: skip
def test_a_wrong_backend_is_noticed(attend, case, monkeypatch):
    monkeypatch.setattr(cosformer.check, "cosformer_attention", attend)
    verdict = examine("chunked", "cpu")
    assert not verdict.passed
    assert case in verdict.failed


def test_a_backend_that_refuses_everything_is_not_right(monkeypatch):
    def attend(q, k, v, **how):
        raise NotServed("no backend can serve this call: it is Sunday.")

    monkeypatch.setattr(cosformer.check, "cosformer_attention", attend)
    verdict = examine("chunked", "cpu")
    assert verdict.refused == len(CASES)
    assert not verdict.passed
    assert "Sunday" in verdict.failed


def test_a_wrong_backend_fails_the_command(monkeypatch, capsys):
    monkeypatch.setattr(cosformer.check, "cosformer_attention", wrong(lambda out: out * 1.01))
    assert main(["info", "--check"]) == 1
    assert "WRONG" in capsys.readouterr().out


def test_gpus_are_listed(monkeypatch):
    gpu = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, total_memory=150 * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: gpu)
    data = info.gather()
    assert [d["device"] for d in data["devices"]] == ["cpu", "cuda:0", "cuda:1"]
    said = info.words(data)
    assert "NVIDIA H200, compute capability 9.0, 150 GiB" in said
    found = {b["name"]: b["available"] for b in data["backends"]}
    assert found["triton"]


@pytest.mark.parametrize(("built", "says"), [(None, "has no CUDA"), ("13.0", "no GPU or no driver")])
def test_why_there_is_no_gpu(built, says, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built)
    assert says in info.words(info.gather())


def test_extras_are_those_of_the_project():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name, packages in info.EXTRAS.items():
        assert [r.partition(">")[0] for r in extras[name]] == list(packages)
