"""The benchmarks of heads with windows: nothing wrong is timed, nothing measured is lost."""

import json

import pytest
import torch

from benchmarks import stream, windows
from benchmarks.contenders import Shape
from benchmarks.terminal import Progress
from cosformer import cosformer_attention
from cosformer.ops import decode_step

SHAPE = Shape(1, 100, 2, 8, torch.float32, torch.device("cpu"))


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(windows, "MIXED", {"cpu": (2, None)})
    monkeypatch.setattr(windows, "WIDE", {"cpu": (320,)})
    monkeypatch.setattr(windows, "LENGTHS", {"cpu": (64,)})
    # Triton's interpreter, which the tests run in, would take its time.
    able = [b for b in windows.backends() if b.name in ("chunked", "reference")]
    monkeypatch.setattr(windows, "backends", lambda: able)


@pytest.mark.usefixtures("small")
def test_a_small_run(tmp_path, capsys):
    windows.main(["--device", "cpu", "--dims", "16", "--seconds", "0.001", "--out", str(tmp_path / "x.json")])
    record = json.loads((tmp_path / "x.json").read_text())
    assert {t["contender"] for t in record["timings"]} == {"windows", "window 320", "plain", "softmax"}
    assert all(v["of_allowed"] <= 1 for v in record["gate"])
    assert "D=16 window 320" in capsys.readouterr().out


@pytest.mark.usefixtures("small")
def test_some_contenders(tmp_path, capsys):
    words = ["--device", "cpu", "--dims", "16", "--seconds", "0.001", "--out", str(tmp_path / "x.json")]
    windows.main([*words, "--only", "windows", "softmax"])
    record = json.loads((tmp_path / "x.json").read_text())
    assert {t["contender"] for t in record["timings"]} == {"windows", "softmax"}
    assert {v["backend"] for v in record["gate"]} == {"chunked"}
    assert {tuple(v["windows"]) for v in record["gate"]} == {(2, None)}  # what is timed
    with pytest.raises(SystemExit, match="2"):
        windows.main([*words, "--only", "window 64"])
    said = "--only window 64: no contender has this name; there are windows, window 320, plain, softmax"
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("small")
def test_what_was_measured_is_kept(tmp_path, monkeypatch):
    def broken(q, k, v, causal):
        raise KeyboardInterrupt

    monkeypatch.setattr(windows, "_softmax", broken)
    with pytest.raises(KeyboardInterrupt):
        windows.main(["--device", "cpu", "--seconds", "0.001", "--out", str(tmp_path / "x.json")])
    record = json.loads((tmp_path / "x.json").read_text())
    assert {t["contender"] for t in record["timings"]} == {"windows", "window 320", "plain"}
    assert record["decoding"]


@pytest.mark.usefixtures("small")
def test_nothing_wrong_is_timed(monkeypatch):
    """Ten rows of a thousand are enough."""

    def wrong(q, k, v, backend, **options):
        out = cosformer_attention(q, k, v, backend=backend, **options)
        return out if backend == "reference" else torch.cat((out[:, :-10], 0 * out[:, -10:]), 1)

    monkeypatch.setattr(windows, "cosformer_attention", wrong)
    with pytest.raises(SystemExit, match="is wrong by"):
        windows.gate(SHAPE, "cpu", ["chunked"])


@pytest.mark.usefixtures("small")
def test_no_wrong_step_is_timed(monkeypatch):
    def late(q, k, v, state):
        out, after = decode_step(q, k, v, state)
        return torch.cat((out[:, :, :1], 0.9 * out[:, :, 1:]), 2), after

    windows.check_step(SHAPE, (2, None))
    monkeypatch.setattr(windows, "decode_step", late)
    with pytest.raises(SystemExit, match="a step with windows"):
        windows.check_step(SHAPE, (2, None))


def test_a_short_stream(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "LONGEST_PIECE", 700)
    stream.main(["--tokens", "3000", "--out", str(tmp_path / "x.json")])
    record = json.loads((tmp_path / "x.json").read_text())
    assert record["tokens"] == record["positions"] == 3000
    assert len(record["state_bytes"]) == 1
    assert record["worst_row"] < 1e-5


def test_a_stream_that_forgets_is_seen(monkeypatch):
    def forgetful(*args, state, **options):
        return cosformer_attention(
            *args, state=stream.CosformerState.zeros(1, 6, 8, windows=stream.WINDOWS), **options
        )

    monkeypatch.setattr(stream, "LONGEST_PIECE", 700)
    monkeypatch.setattr(
        stream,
        "cosformer_attention",
        lambda *x, **o: forgetful(*x, **o) if "state" in o else cosformer_attention(*x, **o),
    )
    assert stream.stream(3000, Progress())["worst_row"] > 0.01


@pytest.mark.parametrize(
    ("main", "words", "said"),
    [
        (stream.main, ["--tokens", "0"], "positive whole number"),
        (stream.main, ["--token", "9"], "Did you mean --tokens?"),
        (stream.main, ["--out", "nowhere/x.json"], "there is no folder nowhere; make it first"),
        (windows.main, ["--device", "cpu", "--out", "nowhere/x.json"], "there is no folder nowhere"),
        (windows.main, ["--device", "cpu", "--out", "."], "--out . is a folder"),
        (windows.main, ["--dims", "0"], "positive whole number"),
        (windows.main, ["--seconds", "-1"], "--seconds"),
        (windows.main, ["--device", "tpu"], "--device"),
    ],
)
def test_a_mistake_is_one_sentence(main, words, said, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert said in message
    assert len(message.splitlines()) == 1


def test_a_call_that_is_compared_on_a_gpu_is_as_large_as_those_that_are_timed(small, monkeypatch):
    """Its first text and its last are compared: what is wrong in the last alone is found."""
    monkeypatch.setattr(windows, "MIXED", {"cuda": (2, None)})
    monkeypatch.setattr(windows, "WIDE", {"cuda": ()})
    monkeypatch.setattr(windows, "TOKENS", 2500)
    found, batches = windows.gate(SHAPE, "cuda", ["chunked"]), []
    assert all(v["of_allowed"] <= 1 for v in found)

    def wrong(q, k, v, *, backend, **options):
        out = cosformer_attention(q, k, v, backend=backend, **options)
        if backend == "chunked":
            batches.append(len(q))
            out = torch.cat([out[:-1], out[-1:] * 1.1])
        return out

    monkeypatch.setattr(windows, "cosformer_attention", wrong)
    with pytest.raises(SystemExit, match="is wrong by"):
        windows.gate(SHAPE, "cuda", ["chunked"])
    assert batches == [3]


def test_such_a_call_takes_the_kernels_for_narrow_windows_on_hopper():
    pytest.importorskip(
        "triton", reason="the package triton is not installed (there are none for this platform)"
    )
    from cosformer.ops.hopper.band_run import MIN_ROWS

    assert -(-windows.TOKENS // 1000) * 1000 * len(windows.MIXED["cuda"]) >= max(MIN_ROWS.values())
