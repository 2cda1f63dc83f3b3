"""The benchmark for GPUs: run through in miniature without one, and its report and picture from a record."""

import json
import math
import sys
import types
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from benchmarks import attention_operator as command
from benchmarks import gpu, gpu_contenders
from benchmarks.contenders import Contender, Shape, features, operator
from benchmarks.gate import admit
from benchmarks.gpu_targets import targets
from benchmarks.record import new_record
from benchmarks.terminal import Progress
from cosformer import cosformer_attention
from cosformer.ops import decode_step
from cosformer.report import plotter
from cosformer.report.render import markdown
from cosformer.report.sections import operator_gpu
from cosformer.report.sections.operator_gpu import crossover

SHAPE = Shape(1, 64, 4, 16, torch.float32, torch.device("cpu"))


def softmax(q, k, v, causal):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)


class Clock:
    """Says that softmax takes as long as the square of a length, in microseconds, and we as its length."""

    def __init__(self, device):
        self.other = None

    def __call__(self, work, seconds=0.1):
        out = work()
        if not isinstance(out, tuple):
            return 1e-3
        batch, length = out[0].shape[:2]
        return 1e-6 * batch * length * (length / 200 if work.attend is softmax else 1) * len(out)


@pytest.fixture
def record(monkeypatch):
    monkeypatch.setattr(gpu, "Clock", Clock)
    monkeypatch.setattr(gpu, "graphed", lambda work: (work, True))
    monkeypatch.setattr(gpu, "bandwidth", lambda clock, device: 1e12)
    monkeypatch.setattr(gpu, "_peak", lambda work, device: 1000)
    monkeypatch.setattr(gpu, "_host", lambda shape: {"triton": {"causal": 5e-5}, "hopper": {"causal": 7e-5}})
    monkeypatch.setattr(gpu, "_growth", lambda shape, clock: {"auto": [{"seconds_per_token": 1e-9}] * 2})
    monkeypatch.setattr(gpu, "_decoding", lambda *_: [{"position": 10, "median_s": 2e-5, "floor_s": 1.5e-5}])
    for name, value in {
        "TOKENS": 64, "HEADS": 4, "LENGTHS": (64, 128, 512), "DIMS": (16,), "DOCUMENTS": 5, "PATIENCE": 1.0,
        "GROUP": 2, "CHECKED": 50, "VARIED": ((2, 32), (1, 64)),
    }.items():  # fmt: skip
        monkeypatch.setattr(gpu, name, value)
    everybody = [
        Contender("cosformer", "cosFormer", operator("auto")),
        Contender("sdpa", "softmax", softmax, computes="softmax"),
        Contender("fla", "wrong", lambda q, k, v, causal: v, modes=("causal",)),
    ]
    monkeypatch.setattr(gpu, "contenders", lambda: (everybody, {"fla-relu": "not there"}))
    monkeypatch.setattr("benchmarks.gate.LENGTHS", (9,))
    saved = []
    data = new_record(SHAPE, [64], [], {})
    data["hardware"]["gpu"], data["command"] = (
        "A GPU",
        "python -m benchmarks.attention_operator --device cuda",
    )
    data["gpu"] = gpu.measure(SHAPE, 0.1, Progress(), lambda found: saved.append(len(found["timings"])))
    assert saved == sorted(saved)
    assert len(saved) >= 3
    return data


@pytest.mark.parametrize("broken", ["mask", "documents", "grouped heads", "decoding"])
def test_nothing_is_timed_where_the_operator_is_wrong(broken, monkeypatch):
    def attention(q, k, v, *, backend="auto", **options):
        out = cosformer_attention(q, k, v, backend=backend, **options)
        given = "mask" if "key_mask" in options else "documents" if "cu_seqlens" in options else "plain"
        kind = "grouped heads" if k.shape[2] < q.shape[2] else given
        return out * 1.01 if kind == broken and backend == "auto" else out

    def step(*inputs):
        out, state = decode_step(*inputs)
        return out * 1.01 if broken == "decoding" else out, state

    monkeypatch.setattr(gpu, "GROUP", 2)
    monkeypatch.setattr(gpu, "CHECKED", 50)
    monkeypatch.setattr(gpu, "cosformer_attention", attention)
    monkeypatch.setattr(gpu, "decode_step", step)
    with pytest.raises(SystemExit, match=f"cosformer, {broken} is wrong, so nothing is timed: .* allowed"):
        gpu._right_first(SHAPE)


def told(record, picture=""):
    return markdown(operator_gpu.document(record, targets(record)), picture=picture)


def test_a_run(record):
    found = {(t["contender"], t["mode"], t["phase"], t["length"]): t for t in record["gpu"]["timings"]}
    assert found["cosformer", "causal", "forward", 64]["median_s"] == pytest.approx(64e-6)
    assert found["sdpa", "causal", "forward+backward", 128]["batch"] == 1
    # Whoever is wrong is not timed, and the report says what was wrong.
    assert not any(name == "fla" for name, *_ in found)
    text = told(record, "picture.png")
    assert "is off by" in text
    assert "fla-relu (not there)" in text
    assert "![Time a token against the length](picture.png)" in text


def test_a_peer_gets_features_in_the_layout_it_reads(monkeypatch):
    """flash-linear-attention copies whatever is not [B, T, H, F] in memory, and would be timed with that."""
    given = []

    def chunk_linear_attn(q, k, v, scale, normalize):
        given.append((q, k))
        return v, None

    module = types.ModuleType("fla.ops.linear_attn")
    module.chunk_linear_attn = chunk_linear_attn
    for name in ("fla", "fla.ops"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "fla.ops.linear_attn", module)
    monkeypatch.setattr(gpu_contenders.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(gpu_contenders, "_tune_briefly", lambda: None)
    monkeypatch.setattr(torch, "compile", lambda function: function)
    q, k, v, _ = replace(SHAPE, batch=2, length=5).inputs()
    found = {c.name: c for c in gpu_contenders.contenders()[0]}
    for name, width in (("fla", 2 * SHAPE.dim), ("fla-relu", SHAPE.dim)):
        assert set(found[name].forms) == {"eager", "compiled"}
        for form in found[name].each_form().values():
            assert form.attend(q, k, v, True) is v
            for x in given.pop():
                assert x.shape == (2, 5, SHAPE.heads, width)
                assert x.is_contiguous()
    found["fla"].attend(q, k, v, True)
    expected = features(q.transpose(1, 2)).transpose(1, 2)
    assert torch.equal(given.pop()[0], expected)


def test_of_several_forms_the_fastest_counts(record):
    """The record and the report name it; a form that is wrong or does not run is not timed."""

    def slow(q, k, v, causal):
        return cosformer_attention(q, k, v, causal=causal)

    def fast(q, k, v, causal):
        return cosformer_attention(q, k, v, causal=causal)

    def breaks(q, k, v, causal):
        raise RuntimeError("no such kernel")

    class Told(Clock):
        def __call__(self, work, seconds=0.1):
            return 1e-3 if work.attend is fast else 2e-3

    c = Contender("fla", "fla", slow, forms={"slow": slow, "fast": fast, "broken": breaks})
    timings, _ = gpu._against_length(c, replace(SHAPE, dim=16), "causal", Told(None), 0.1)
    assert {(t["median_s"], t["form"]) for t in timings} == {(1e-3, "fast")}
    c = Contender("fla", "fla", slow, forms={"wrong": lambda q, k, v, causal: v, "slow": slow})
    gate = []
    assert set(gpu._admitted(c, SHAPE, gate).forms) == {"slow"}
    assert [(v["form"], v["verdict"]) for v in gate] == [("wrong", "wrong"), ("slow", "passed")]
    assert gpu._admitted(replace(c, forms={"wrong": c.forms["wrong"]}), SHAPE, gate) is None
    record["gpu"]["timings"] += timings
    assert "the faster counts: fast in" in told(record)


def test_what_would_take_too_long_is_not_run(record, monkeypatch):
    monkeypatch.setattr(gpu, "PATIENCE", 1e-3)
    c = Contender("sdpa", "softmax", softmax, computes="softmax")
    timings, _ = gpu._against_length(c, replace(SHAPE, dim=16), "causal", Clock(None), 0.1)
    skipped = [t["length"] for t in timings if "skipped" in t]
    assert skipped == [512, 512]  # 128 tokens take 82 us, 512 sixteen times as long


def test_what_is_timed_but_does_not_fit_once_more(record, monkeypatch):
    def peak(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB.")

    monkeypatch.setattr(gpu, "_peak", peak)
    c = Contender("sdpa", "softmax", softmax, computes="softmax")
    timings, peaks = gpu._against_length(c, replace(SHAPE, dim=16), "causal", Clock(None), 0.1)
    assert not peaks
    text = told({**record, "gpu": {**record["gpu"], "timings": timings}})
    assert "forward+backward, D = 16, T = 128, peak memory: CUDA out of memory." in text
    assert "forward, D = 16, T = 128" not in text.split("## Not run")[1]


def test_variants_are_beside_the_plain_case(record):
    kinds = {(v["kind"], v["batch"]) for v in record["gpu"]["variants"]}
    assert kinds == {(k, b) for k in ("plain", "mask", "grouped heads") for b in (2, 1)} | {("documents", 1)}
    rows = {row.says: row for row in targets(record)}
    mask = next(row for says, row in rows.items() if "mask, causal, forward, B = 1" in says)
    assert mask.measured == "1"
    assert mask.met == "yes"


def test_targets_are_judged(record):
    rows = {row.says: row for row in targets(record)}
    host = {says: row.met for says, row in rows.items() if "without a graph" in says}
    assert sorted(host.values()) == ["no, by 16.7%", "yes"]
    decoding = next(row for says, row in rows.items() if says.startswith("decoding"))
    assert (decoding.measured, decoding.met) == ("1.33", "yes")


def test_picture(record, tmp_path):
    figure = operator_gpu.figure(record)
    (plot,) = figure.plots
    lines = {line.name: line.points for line in plot.lines}
    assert lines["cosFormer"][0] == (64, pytest.approx(record_time(record) / 64)), "a token's share of a call"
    plotter.png(figure, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def record_time(record):
    case = ("cosformer", "causal", "forward+backward", 64)
    fields = ("contender", "mode", "phase", "length")
    return next(t["median_s"] for t in record["gpu"]["timings"] if tuple(t[f] for f in fields) == case)


@pytest.mark.parametrize(
    ("ours", "theirs", "length"),
    [
        ({1: 2.0, 4: 2.0}, {1: 1.0, 4: 4.0}, 2.0),
        ({1: 2.0, 4: 2.0}, {1: 3.0, 4: 9.0}, 0.0),
        ({1: 2.0, 4: 2.0}, {1: 3.0, 4: 1.0}, None),
        ({1: 2.0, 4: 2.0, 16: 2.0}, {1: 3.0, 4: 1.0, 16: 4.0}, 8.0),
        ({}, {1: 1.0}, None),
    ],
)
def test_crossover(ours, theirs, length):
    found = crossover(ours, theirs)
    assert (found is None) == (length is None)
    assert length is None or math.isclose(found, length)


@pytest.mark.parametrize(
    "option", [["--lengths", "512"], ["--quick"], ["--dtype", "float16"], ["--no-memory"], ["--heads", "4"]],
    ids=lambda o: o[0],
)  # fmt: skip
def test_no_option_is_ignored(option, capsys):
    p = command.parser()
    with pytest.raises(SystemExit) as left:
        command.refuse_shapes(p, p.parse_args(["--device", "cuda", *option]))
    assert left.value.code == 2
    assert f"{option[0]} is for a CPU" in capsys.readouterr().err
    command.refuse_shapes(p, p.parse_args(["--device", "cuda", "--seconds", "0.1", "--out", "x"]))


def test_an_error_that_is_told_and_not_judged(monkeypatch):
    """What others compute roughly may be timed, with its error beside it; what refuses may not."""
    monkeypatch.setattr("benchmarks.gate.LENGTHS", (9,))

    def refuses(q, k, v, causal):
        raise ValueError("not here")

    rough, strict = (
        Contender("fla", "fla", lambda q, k, v, causal: v, computes=computes)
        for computes in ("roughly cosformer", "cosformer")
    )
    admitted, (said,) = admit([rough], SHAPE)
    assert admitted == [rough]
    assert said["verdict"] == "passed"
    assert said["reason"].startswith("not held to the tolerance: ")
    assert max(c["error"] for c in said["checks"]) > 0.1
    assert admit([strict], SHAPE)[0] == []
    assert admit([replace(rough, attend=refuses)], SHAPE)[0] == []


def test_a_run_that_was_stopped_goes_on(record, monkeypatch, tmp_path):
    """What its record has is kept; a record of another commit, GPU or version is not."""
    data = record | {"gpu": record["gpu"] | {"finished": False}}
    last = data["gpu"]["parts"][-1]["contender"]
    data["gpu"]["parts"] = data["gpu"]["parts"][:-1]
    said = told(data).split("stopped before it had measured: ")[1]
    assert f"{operator_gpu.NAMES[last]} (D = {gpu.DIMS[0]})" in said
    assert not said.startswith(operator_gpu.NAMES[data["gpu"]["parts"][0]["contender"]])
    path = tmp_path / "record.json"
    clean = record | {"commit": record["commit"] | {"dirty": False}}
    data["commit"] = clean["commit"]
    path.write_text(json.dumps(data))
    assert command.begun(path, clean)["gpu"]["timings"] == record["gpu"]["timings"]
    for key, other in (
        ("commit", {"id": "other", "dirty": False}), ("versions", {}), ("settings", {}),
        ("hardware", {"gpu": "another"}),
    ):  # fmt: skip
        assert command.begun(path, clean | {key: other}) is None
    assert command.begun(path, clean | {"commit": {**clean["commit"], "dirty": True}}) is None
    for text in ("{", "[]", "{}", json.dumps(clean | {"gpu": record["gpu"] | {"finished": True}})):
        path.write_text(text)
        assert command.begun(path, clean) is None
    asked = []
    monkeypatch.setattr(gpu, "admit", lambda found, shape: (asked.append(found[0].name), ([], []))[1])
    gpu.measure(SHAPE, 0.1, Progress(), lambda found: None, data["gpu"])
    assert asked == [last]
