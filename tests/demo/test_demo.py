"""The demonstration: its parts, its page, and what is kept when it is stopped."""

import copy
import dataclasses
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from cosformer import tasks
from cosformer.cli import main
from cosformer.demo import recipe as demo_recipe
from cosformer.demo import training
from cosformer.demo.maps import attention_maps, most_concentrated
from cosformer.demo.settings import TINY, Settings
from cosformer.models import CosformerConfig, CosformerForCausalLM
from cosformer.report.sections.demo import LENGTH_PLOTS, MECHANISMS, figures
from cosformer.training import recipes
from cosformer.training.model import build
from tests.report.demo_record import RECORD

ROOT = Path(__file__).parents[2]
LAYERS = 2


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COSFORMER_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # of the processes that measure
        patch.setenv("COSFORMER_CACHE", str(folder / "cache"))
        assert main(["demo", "--tiny", "--out", str(folder)]) == 0
    return folder


def test_everything_is_there(finished):
    record = json.loads((finished / "record.json").read_text())
    page = (finished / "report.html").read_text()
    for name in MECHANISMS:
        learned, costs = record["training"]["models"][name], record["costs"][name]
        assert 0 < learned["bits"] < 10
        assert [c["length"] for c in costs["contexts"]] == list(TINY.lengths)
        assert all(c["seconds"] > 0 and c["cache_bytes"] > 0 for c in costs["contexts"])
        assert len(record["maps"][name]) == LAYERS
        assert record["samples"][name]
        assert f"{learned['bits']:.3f}" in page
    # Of so little memory an idle allocator may hand out all: what grew by nothing is not drawn.
    contexts = [c for name in MECHANISMS for c in record["costs"][name]["contexts"]]
    drawn = [field for _, field, *_ in LENGTH_PLOTS if any(c[field] for c in contexts)]
    assert {"seconds", "cache_bytes"} <= set(drawn)
    assert page.count('class="plot"') == 2 + len(drawn)
    assert page.count("<img") == 2 * LAYERS


def test_caches_are_as_large_as_their_shapes_say(finished):
    costs = json.loads((finished / "record.json").read_text())["costs"]
    state = [c["cache_bytes"] for c in costs["cosformer"]["contexts"]]
    assert len(set(state)) == 1
    assert costs["cosformer"]["far_cache_bytes"] <= state[0] <= 1.1 * costs["cosformer"]["far_cache_bytes"]
    last = costs["softmax"]["contexts"][-1]
    grown = last["cache_bytes"] * TINY.far / (last["length"] + 8)  # with the tokens decoded behind it
    assert grown == pytest.approx(costs["softmax"]["far_cache_bytes"], rel=0.05)


def test_the_models_can_go_on(finished, capsys):
    assert main(["generate", str(finished / "cosformer"), "--prompt", "import ", "--tokens", "3"]) == 0
    assert capsys.readouterr().out.startswith("import ")


def test_finished_parts_are_not_done_again(finished, monkeypatch, capsys):
    def never(*args, **kwargs):
        raise AssertionError("it was finished already")

    monkeypatch.setattr(training, "train", never)
    assert main(["demo", "--tiny", "--out", str(finished)]) == 0
    assert "steps, training, costs, maps, samples finished already" in capsys.readouterr().out


def test_other_settings_want_another_folder(finished, capsys):
    before = (finished / "record.json").read_text()
    assert main(["demo", "--tiny", "--seconds", "77", "--out", str(finished)]) == 2
    assert "holds a demonstration of other settings" in capsys.readouterr().err
    assert (finished / "record.json").read_text() == before


@pytest.mark.thorough
def test_fresh_begins_anew_and_can_go_on(finished, tmp_path, monkeypatch):
    folder = tmp_path / "d"
    shutil.copytree(finished, folder)

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    command = ["demo", "--tiny", "--seconds", "77", "--out", str(folder)]
    with monkeypatch.context() as stopped:
        stopped.setattr(training, "affordable", stop)
        assert main([*command, "--fresh"]) == 130
    assert not (folder / "runs").exists()
    assert main(command) == 0
    assert json.loads((folder / "record.json").read_text())["settings"]["seconds"] == 77


def test_no_memory_is_no_figure():
    record = copy.deepcopy(RECORD)
    for costs in record["costs"].values():
        costs["contexts"][-1]["memory_bytes"] = 0
    row = next(r for r in figures(record).rows if r[0].endswith("tokens, peak memory"))
    assert row[1:] == ["-", "-", "-"]


@pytest.mark.parametrize(
    ("where", "kept"), [("training.affordable", "nothing yet"), ("measure.measure", "steps, training")]
)
def test_ctrl_c_keeps_what_is_finished(where, kept, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as stopped:

        def stop(*args, **kwargs):
            raise KeyboardInterrupt

        stopped.setattr(f"cosformer.demo.{where}", stop)
        assert main(["demo", "--tiny", "--out", str(tmp_path / "d")]) == 130
    said = capsys.readouterr().err
    assert f"kept in {tmp_path / 'd'}: {kept}." in said
    assert said.strip().endswith(f"Continue with: cosformer demo --out {tmp_path / 'd'} --tiny")
    record = tmp_path / "d" / "record.json"
    assert record.exists() == ("training" in kept)


def test_a_real_interrupt_ends_it_in_seconds(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "cosformer", "demo", "--out", str(tmp_path), "--seconds", "86400"],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # Tests that a shell has started in the background ignore the signal, and so would what they start.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        assert "Training" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Continue with: cosformer demo" in said
    assert "Traceback" not in said


def test_time_limits_the_steps():
    assert training.affordable(dataclasses.replace(TINY, steps=10**9, seconds=1e-9)) == 10
    assert training.affordable(dataclasses.replace(TINY, steps=12, seconds=1e9)) == 12


def test_both_are_trained_alike():
    ours, theirs = (TINY.run(name, 10) for name in MECHANISMS)
    assert ours.differences(theirs) == ["attention", "model"]
    own = {name for name in ours.model | theirs.model if ours.model.get(name) != theirs.model.get(name)}
    assert own == {"attention_parameters", "position"}
    task = tasks.build("python", **ours.task_settings)
    sizes = {sum(p.numel() for p in build(run, task).parameters()) for run in (ours, theirs)}
    assert len(sizes) == 1


def test_curves_are_means(tmp_path):
    losses = [{"step": i + 1, "loss": i * math.log(2)} for i in range(6)]
    (tmp_path / "log.jsonl").write_text(
        "".join(json.dumps(x) + "\n" for x in [*losses, {"step": 6, "event": "x"}])
    )
    found = training.curve(tmp_path / "log.jsonl", 0.5, points=3)
    assert found == [(2, 1.0, pytest.approx(0.5)), (4, 2.0, pytest.approx(2.5)), (6, 3.0, pytest.approx(4.5))]


@pytest.mark.parametrize("name", MECHANISMS)
def test_maps_are_the_weights(name):
    torch.manual_seed(0)
    config = CosformerConfig.paper(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=64,
        attention=name, initializer_range=0.25,
    )  # fmt: skip
    model = CosformerForCausalLM(config).eval()
    ids = torch.randint(256, (1, 12))
    maps = attention_maps(model, ids)
    assert [tuple(m.shape) for m in maps] == [(2, 12, 12)] * 2
    for weights in maps:
        assert (weights >= 0).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 12))
        assert (weights.triu(1) == 0).all()
    # The first layer's, by hand.
    layer, i = model.model.layers[0], torch.arange(12)
    q, k, _ = layer.attention.project(layer.attention_norm(model.model.embed_tokens(ids)), None, None)
    if name == "softmax":
        expected = (torch.einsum("bihd,bjhd->bhij", q, k) / 32**0.5).exp().tril()
    else:
        near = torch.cos(math.pi / 2 * (i[:, None] - i) / 64)
        expected = (torch.einsum("bihd,bjhd->bhij", q.relu(), k.relu()) * near).tril()
    torch.testing.assert_close(maps[0], (expected / expected.sum(-1, keepdim=True))[0])
    assert not model.model.layers[0].attention.attention._forward_pre_hooks


def test_the_sharpest_head_is_chosen():
    even = torch.full((4, 4), 0.25)
    head, weights = most_concentrated(torch.stack([even, torch.eye(4) * 0.5]))
    assert head == 1
    assert weights.diagonal().tolist() == [1, 1, 1, 1]


def test_held_out_text_can_be_cut_short():
    whole, short = (tasks.build("python", length=64, held_out=n) for n in (None, 640))
    assert len(short.dataset("valid")) in (10, 11)  # windows share a byte
    assert len(whole.dataset("valid")) > 1000
    assert len(short.dataset("train")) == len(whole.dataset("train"))
    with pytest.raises(ValueError, match="held_out"):
        tasks.build("python", held_out=0)


@pytest.mark.parametrize("steps", [10, 800])
def test_it_is_a_recipe(steps):
    """Found by its path like any other, and paced by its steps."""
    path = Path(demo_recipe.__file__)
    run = recipes.build(path, scale="small", attention="cosformer", steps=steps)
    assert run == Settings().run("cosformer", steps)
    assert (run.warmup, run.eval_every) == (steps // 10, steps)
    assert recipes.build(path, scale="tiny", attention="softmax", warmup=3).warmup == 3
