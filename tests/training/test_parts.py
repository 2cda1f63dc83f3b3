"""The parts of training that need no model: runs, orders of samples, schedules, files, the log."""

import json
import math
import multiprocessing
import sys
import types
from functools import partial

import numpy as np
import pytest
import torch
import transformers

from cosformer import reading, record_file, tasks
from cosformer.tasks import Rows
from cosformer.tasks.language.windows import Windows, collate_windows
from cosformer.training import Run, main, schedules
from cosformer.training.device_dataset import DeviceDataset, TooLarge, is_static
from cosformer.training.loader import LoaderDataset
from cosformer.training.log import Log
from cosformer.training.order import Order
from tests.training.toy import Toy, toy


def test_a_run_goes_to_json_and_back():
    run = toy(task_settings={"rows": 5}, max_grad_norm=None)
    again = Run.from_dict(json.loads(json.dumps(run.to_dict())))
    assert again == run
    assert again.replace(seed=5).differences(run) == ["seed"]
    assert again.replace(workers=7, device="auto", log_every=1).differences(run) == []
    again.to_dict()["model"]["hidden_size"] = 1
    assert again == run, "what is handed out is a copy"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stesp": 3}, "no field 'stesp'; did you mean steps?"),
        ({"steps": 0}, "steps must be a positive int"),
        ({"learning_rate": math.nan}, "learning_rate must be a positive finite number"),
        ({"schedule": "cosin"}, "schedule must be one of constant, cosine"),
        ({"precision": "fp16"}, "precision must be one of fp32, bf16"),
        ({"batch_size": 9}, "batch_size must be a multiple of accumulation 2"),
        ({"beta2": 1.0}, "beta2 must be at least 0 and below 1"),
        ({"warmup": -1}, "warmup must not be negative"),
        ({"compile": "yes"}, "compile must be True or False"),
        ({"patience": 0}, "patience must be a positive int"),
        ({"model": {"attention": "relu"}}, "model must not hold attention"),
    ],
)
def test_impossible_runs_are_refused(changes, message):
    with pytest.raises((ValueError, TypeError), match=message.replace("?", r"\?")):
        toy().replace(**changes)
    with pytest.raises(ValueError, match="needs a value for task, learning_rate"):
        Run.from_dict({"steps": 1, "batch_size": 1})


@pytest.mark.parametrize(("processes", "accumulation"), [(1, 1), (1, 4), (2, 1), (2, 2), (4, 2)])
def test_an_update_sees_the_same_samples_however_it_is_divided(processes, accumulation):
    """And every epoch all of them, once."""
    whole = Order(samples=11, batch=8, seed=3)
    parts = [Order(11, 8, accumulation, 3, processes, process) for process in range(processes)]
    for update in range(11):
        divided = [
            key
            for number in range(update * accumulation, (update + 1) * accumulation)
            for part in parts
            for key in part.keys(number)
        ]
        assert divided == whole.keys(update)
    line = [key for update in range(11) for key in whole.keys(update)]
    assert sorted(line) == [(epoch, index) for epoch in range(8) for index in range(11)]
    assert [e for e, _ in line] == sorted(e for e, _ in line)
    assert line[:11] != line[11:22]


@pytest.mark.parametrize("samples", [700, 703, 5, 31, 32])
def test_batches_of_similar_lengths(samples):
    """Every epoch still has every sample once, and a batch hardly any padding; the same from anywhere."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 1000, (samples,), generator=generator)
    grouped, drawn = (Order(samples, 32, seed=3, lengths=x) for x in (lengths, None))
    keys = [grouped.keys(update) for update in range(60)]
    line = [key for batch in keys for key in batch]
    epochs = len(line) // samples
    assert sorted(line[: epochs * samples]) == [(e, i) for e in range(epochs) for i in range(samples)]
    assert grouped.keys(50) == keys[50] == Order(samples, 32, seed=3, lengths=lengths).keys(50)
    one = [batch for batch in keys if len({epoch for epoch, _ in batch}) == 1]
    if samples > 500:
        padded = [
            sum(int(max(lengths[i] for _, i in batch)) * 32 for batch in batches)
            / sum(int(lengths[i]) for batch in batches for _, i in batch)
            for batches in (one, [drawn.keys(update) for update in range(60)])
        ]
        assert padded[0] < 1.1 < 1.8 < padded[1]
        longest = [max(int(lengths[i]) for _, i in batch) for batch in one[:20]]
        assert longest not in (sorted(longest), sorted(longest, reverse=True))


def test_lengths_of_samples():
    """The same from the device and from the loader, also of pairs; nothing to sort by where all are one."""
    task = Toy(rows=9)
    data, cpu = task.dataset("train"), torch.device("cpu")
    expected = [len(data[i]["input_ids"]) for i in range(9)]
    kept = DeviceDataset(task, data, device=cpu, shapes=3)
    assert kept.sample_lengths().tolist() == expected
    assert LoaderDataset(task, data, workers=0, device=cpu).sample_lengths().tolist() == expected
    assert {b["input_ids"].shape[1] for b in kept.evaluation(range(9), 1)} <= {8, 16, 20, 24}
    pairs = tasks.build("citations", tokens="bytes")
    rows = [{"input_ids": torch.ones(n), "pair_input_ids": torch.ones(m), "labels": torch.tensor(0)}
            for n, m in ((40, 8), (8, 64), (64, 3))]  # fmt: skip
    kept = DeviceDataset(pairs, rows, device=cpu, shapes=4)
    assert kept.sample_lengths().tolist() == [48, 72, 67]
    shapes = [[b[n].shape[1] for n in ("input_ids", "pair_input_ids")] for b in kept.evaluation(range(3), 1)]
    assert shapes == [[48, 48], [64, 64], [64, 64]]


def test_texts_that_are_labels_have_a_length_of_their_own():
    """Those of reverse are one token longer than what is read."""
    task = tasks.build("reverse", train_rows=300, valid_rows=1, test_rows=1)
    data, cpu = task.dataset("train"), torch.device("cpu")
    loader = LoaderDataset(task, data, workers=0, device=cpu)
    for shapes in (None, 2):
        kept = DeviceDataset(task, data, device=cpu, shapes=shapes)
        assert torch.equal(kept.sample_lengths(), loader.sample_lengths())
        order = Order(300, 10, lengths=kept.sample_lengths())
        for one, two in zip(kept.training(order, 0, 60), loader.training(order, 0, 60), strict=True):
            assert one["labels"].is_contiguous()
            for name, x in two.items():
                real = x != (-100 if name == "labels" else task.pad_token_id if name == "input_ids" else 0)
                width = min(x.shape[1], one[name].shape[1])
                assert not real[:, width:].any(), name
                assert torch.equal(one[name][:, :width], x[:, :width]), name


def test_what_is_not_padded_has_no_lengths():
    """The last piece of a stream is shorter, and has no mask: it is sorted nowhere."""
    data = Windows(np.arange(320, dtype=np.uint8) % 200, 10, 16)
    collate = partial(collate_windows, length=16)
    task = types.SimpleNamespace(name="stream", head="causal_lm", pad_token_id=None, collate=collate)
    kept = DeviceDataset(task, data, device=torch.device("cpu"), shapes=None)
    loader = LoaderDataset(task, data, workers=0, device=torch.device("cpu"))
    assert kept.sample_lengths().tolist() == loader.sample_lengths().tolist() == [0] * len(data)


def test_samples_that_change_have_no_lengths():
    task = Toy(changing=True)
    with pytest.raises(ValueError, match="group_by_length must be false: the samples of toy change"):
        main.source(toy(group_by_length=True), task, "train", torch.device("cpu"))


def test_an_order_can_be_entered_anywhere():
    walked = Order(samples=5, batch=12, seed=1)
    for number in range(9):
        walked.keys(number)
    assert walked.keys(9) == Order(samples=5, batch=12, seed=1).keys(9)
    assert Order(samples=5, batch=12, seed=2).keys(9) != walked.keys(9)
    assert walked.epoch(10) == 24
    with pytest.raises(ValueError, match="multiple of accumulation times processes, 2 × 3, but got 8"):
        Order(5, 8, 2, 0, 3, 0)


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("constant", lambda o: transformers.get_constant_schedule_with_warmup(o, 10)),
        ("cosine", lambda o: transformers.get_cosine_schedule_with_warmup(o, 10, 100)),
        (
            "polynomial",
            lambda o: transformers.get_polynomial_decay_schedule_with_warmup(o, 10, 100, 0.02, 2.0),
        ),
        ("inverse_sqrt", lambda o: transformers.get_inverse_sqrt_schedule(o, 10)),
    ],
)
def test_schedules_are_those_of_transformers(name, theirs):
    """Which begin with a step at rate zero; ours begin with the one after."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = theirs(optimizer)
    settings = {"end": 0.02, "power": 2.0} if name == "polynomial" else {}
    for step in range(1, 100):
        optimizer.step()
        schedule.step()
        ours = schedules.factor(name, step, warmup=10, steps=100, **settings)
        assert ours == pytest.approx(schedule.get_last_lr()[0], rel=1e-9), step


def test_rsqrt_is_that_of_the_long_range_arena():
    """base · min(1, step / warm-up) / sqrt(max(step, warm-up))"""
    for step in (1, 500, 1000, 1001, 4000):
        ours = schedules.factor("rsqrt", step, warmup=1000, steps=5000)
        assert ours == pytest.approx(min(1, step / 1000) / math.sqrt(max(step, 1000)))


@pytest.mark.parametrize("name", schedules.NAMES)
def test_schedules_without_warm_up_begin_high_and_end(name):
    values = [schedules.factor(name, s, warmup=0, steps=50, end=0.1) for s in range(1, 51)]
    assert all(0 < v <= 1 for v in values)
    assert values == sorted(values, reverse=True)
    if name in ("cosine", "polynomial"):
        assert values[-1] == pytest.approx(0.1)


def _append(path, number):
    for i in range(20):
        record_file.append_once(path, {"id": f"{number}-{i}", "text": "x" * 5000}, "id")


def test_records_are_appended_whole_and_once(tmp_path):
    path = tmp_path / "results" / "x.jsonl"
    workers = [multiprocessing.get_context("fork").Process(target=_append, args=(path, n)) for n in (1, 2, 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(line["id"] for line in reading.json_lines(path)) == sorted(
        f"{n}-{i}" for n in (1, 2) for i in range(20)
    )
    with path.open("a") as file:
        file.write('{"id": "torn')
    assert record_file.append_once(path, {"id": "torn"}, "id"), "half a line is not that record"
    assert reading.json_lines(path)[-1] == {"id": "torn"}
    assert not record_file.append_once(path, {"id": "torn", "more": 1}, "id")
    path.write_text('{"a": 1}\nnonsense\n')
    with pytest.raises(ValueError, match=r"x.jsonl, line 2: not a JSON object"):
        reading.json_lines(path)


def test_a_log_is_rewound_to_a_step(tmp_path):
    log = Log(tmp_path)
    for step in range(1, 6):
        log.write(step, loss=step / 10)
    log.flush()
    with log.path.open("a") as file:
        file.write('{"step": 6, "lo')
    again = Log(tmp_path)
    again.rewind(3)
    again.write(4, loss=0.5)
    assert [(line["step"], line["loss"]) for line in reading.json_lines(log.path)] == [
        (1, 0.1),
        (2, 0.2),
        (3, 0.3),
        (4, 0.5),
    ]


def test_tensorboard_where_it_is_installed(tmp_path, monkeypatch):
    written = []

    class Writer:
        def __init__(self, folder, purge_step):
            written.append((folder, purge_step))

        def add_scalar(self, name, value, step):
            written.append((name, value, step))

        def flush(self):
            pass

    fake = types.ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "tensorboard")
    log = Log(tmp_path)
    log.rewind(2)
    log.write(3, loss=0.5)
    log.write(3, event="valid", accuracy=0.25)
    assert written == [
        (str(tmp_path / "tensorboard"), 3), ("train/loss", 0.5, 3), ("valid/accuracy", 0.25, 3)
    ]  # fmt: skip


def test_a_split_on_the_device_is_the_collated_one():
    """In small integers, padded alike; unless it changes from epoch to epoch."""
    task = Toy(rows=9)
    data = task.dataset("train")
    resident = DeviceDataset(task, data, device=torch.device("cpu"), shapes=None)
    assert {name: x.dtype for name, x in resident.columns.items()} == {
        "input_ids": torch.uint8, "attention_mask": torch.uint8, "labels": torch.int16,
    }  # fmt: skip
    for batch, start in zip(resident.evaluation(range(2, 9), 3), (2, 5, 8), strict=True):
        expected = task.collate([data[i] for i in range(start, min(start + 3, 9))])
        for name, x in expected.items():
            assert batch[name].dtype == x.dtype
            assert torch.equal(batch[name], x), name
    whole = DeviceDataset(task, data, device=torch.device("cpu"), shapes=1)
    assert len({b["input_ids"].shape for b in whole.evaluation(range(9), 1)}) == 1
    assert is_static(data)
    assert not is_static(Toy(changing=True).dataset("train"))


class _LongAtTheEnd(Rows):
    """One token, one token, ..., twenty tokens."""

    def __len__(self):
        return 3000

    def __getitem__(self, index):
        ids = torch.zeros(20 if index == 2999 else 1, dtype=torch.int64)
        return {"input_ids": ids, "labels": torch.tensor(0)}


def test_the_size_of_a_split_is_that_of_its_longest_sample(monkeypatch):
    """All samples are padded to it, so the first one tells nothing."""
    size = 3000 * (20 + 20 + 2)  # input_ids and mask in bytes, labels in 16 bits for -100
    task, device = Toy(), torch.device("cpu")
    kept = DeviceDataset(task, _LongAtTheEnd(), device=device, shapes=None)
    assert size - 3000 <= sum(x.nbytes for x in kept.columns.values()) <= size
    DeviceDataset(task, _LongAtTheEnd(), device=device, shapes=None, limit=size)
    with pytest.raises(TooLarge):
        DeviceDataset(task, _LongAtTheEnd(), device=device, shapes=None, limit=size // 2)
    monkeypatch.setattr(Toy, "dataset", lambda self, split: _LongAtTheEnd())
    monkeypatch.setattr(main, "LIMIT", size // 2)
    assert isinstance(main.source(toy(workers=0), task, "train", device), LoaderDataset)
    monkeypatch.setattr(main, "LIMIT", size)
    assert isinstance(main.source(toy(workers=0), task, "train", device), DeviceDataset)


@pytest.mark.parametrize("tokens", [1, 2, 7, 8, 9, 50])
@pytest.mark.parametrize("overlap", [1, 3])
def test_windows_at_once_are_those_one_by_one(tokens, overlap):
    stream = np.random.default_rng(0).integers(0, 256, tokens).astype(np.uint8)
    rows = Windows(stream, 10, 8, overlap)
    if not len(rows):
        assert rows.columns() is None
        return
    made, expected = rows.columns(), collate_windows([*rows, Windows(np.arange(9), 10, 8)[0]], 8)
    for name, x in expected.items():
        assert torch.equal(made[name].long(), x[:-1]), name
    assert Windows(stream.astype(np.int64), 10, 8).columns() is None
