"""What every task keeps to, on tiny data in the official formats: a new task is under these by existing."""

import inspect

import pytest
import torch
from torch.utils.data import DataLoader

from cosformer import tasks
from cosformer.tasks.base import SPLITS
from tests.tasks.tiny import TASKS

FORWARD = {
    "causal_lm": {"input_ids", "labels"},
    "masked_lm": {"input_ids", "labels", "position_ids"},
    "classification": {"input_ids", "attention_mask", "labels"},
    "pair_classification": {
        "input_ids", "attention_mask", "pair_input_ids", "pair_attention_mask", "labels"
    },
    "conditional_generation": {"input_ids", "attention_mask", "labels"},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tasks")


@pytest.fixture
def build(folder, monkeypatch):
    """Builds a task over tiny data; what one test has written or generated, the others find."""

    def make(name):
        write, settings = TASKS[name]
        monkeypatch.setenv("COSFORMER_CACHE", str(folder / "cache"))
        monkeypatch.setenv("COSFORMER_DATA", str(folder / name))
        if write is not None and not (folder / name).exists():
            write()
        return tasks.build(name, **settings)

    return make


def test_every_task_is_here():
    assert sorted(TASKS) == tasks.names()


@pytest.mark.parametrize("name", tasks.names())
def test_rows_and_batches(name, build):
    task = build(name)
    for split in SPLITS:
        rows = task.dataset(split)
        count = len(rows)
        assert count > 0
        first, last = rows[0], rows[-1]
        assert all(torch.equal(first[key], task.dataset(split)[0][key]) for key in first), (
            "the same each time"
        )
        assert all(torch.equal(last[key], rows[count - 1][key]) for key in last)
        with pytest.raises(IndexError, match=f"row {count} was asked for, but the split has {count} rows"):
            rows[count]
        shown = [rows[i] for i in range(min(count, 12))] + [last]
        batch = task.collate(shown)
        left_out = set()
        if task.pad_token_id is None and task.head == "classification":
            left_out.add("attention_mask")
        if name == "masked":  # no documents beside each other; of pictures, nothing is padded
            left_out.add("position_ids")
        assert set(batch) == FORWARD[task.head] - left_out
        for key, value in batch.items():
            assert len(value) == len(shown)
            if key.endswith("input_ids"):
                assert value.dtype == torch.int64
                assert value.shape[1] <= task.length
                assert 0 <= int(value.min()) <= int(value.max()) < task.vocab_size
        for i, row in enumerate(shown):
            for key in ("input_ids", "pair_input_ids"):
                if key in row:
                    size = len(row[key])
                    assert torch.equal(batch[key][i, :size], row[key]), "what is real is as it was"
                    mask = batch.get(key.replace("input_ids", "attention_mask"))
                    if mask is not None:
                        assert mask[i].tolist() == [1] * size + [0] * (mask.shape[1] - size)
                        assert (batch[key][i, size:] == task.pad_token_id).all()


@pytest.mark.parametrize("name", tasks.names())
def test_labels(name, build):
    task = build(name)
    rows = task.dataset("train")
    labels = [rows[i]["labels"] for i in range(min(len(rows), 40))]
    labels = torch.stack(labels) if task.num_labels else None
    if task.num_labels is None:
        row = task.dataset("valid")[0]
        extra = int(task.head == "conditional_generation")  # the sign of the end
        assert len(row["labels"]) == len(row["input_ids"]) + extra
        assert (row["labels"] != -100).any()
    elif task.num_labels == 1:
        assert labels.dtype == torch.float32
        assert len(labels.unique()) == 3
    else:
        assert labels.dtype == torch.int64
        assert set(labels.tolist()) <= set(range(task.num_labels))
        assert len(labels.unique()) > 1 or name == "pathx"


@pytest.mark.parametrize("name", tasks.names())
def test_a_perfect_model_has_a_perfect_score(name, build):
    """Logits made from the labels of `collate` go through the task's own metric."""
    task = build(name)
    rows = task.dataset("train")
    batch = task.collate([rows[i] for i in range(min(len(rows), 6))])
    labels = batch["labels"]
    if task.num_labels == 1:
        logits = labels[:, None]
    elif task.num_labels is not None:
        logits = torch.nn.functional.one_hot(labels, task.num_labels) * 30.0
    else:
        target = labels.roll(-1, 1) if task.head == "causal_lm" else labels
        logits = torch.nn.functional.one_hot(target.clamp_min(0), task.vocab_size) * 40.0
    metric = task.metric
    score = metric.score(metric.rows(logits, batch))
    assert next(iter(score)) == metric.name
    best = 0 if metric.name == "bits_per_character" else 1
    assert score[metric.name] == pytest.approx(best, abs=1e-4)
    if metric.name != "pearson":
        assert score["accuracy"] == 1
    assert metric.higher_is_better == (metric.name not in ("perplexity", "bits_per_character"))


@pytest.mark.parametrize("name", tasks.names())
def test_example(name, build):
    drawn = build(name).example()
    assert "labels" in drawn
    assert len(drawn) > 20


@pytest.mark.parametrize("name", ["masked", "mlm", "sst2", "enwik8", "citations", "pathfinder"])
def test_loaders_with_workers_read_the_same(name, build):
    task = build(name)
    rows = task.dataset("train")
    batches = [list(DataLoader(rows, batch_size=4, collate_fn=task.collate, num_workers=n)) for n in (0, 2)]
    for one, other in zip(*batches, strict=True):
        assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name", sorted(n for n, (write, _) in TASKS.items() if write is not None))
def test_missing_files_say_what_to_do(name):
    with pytest.raises(
        tasks.DataError, match=r"is missing .*looked for in .*data and .*cache.data"
    ) as caught:
        tasks.build(name).dataset("train")
    assert len(str(caught.value).rpartition("data. ")[2]) > 20, "and then comes an advice"


@pytest.mark.parametrize(
    "name", sorted(n for n in TASKS if "official" in tasks.parameters(n) and n != "amazon")
)
def test_other_counts_than_the_official_ones_are_refused(name, tmp_path):
    TASKS[name][0]()
    with pytest.raises(
        tasks.DataError, match=r"but the official file has .*; fetch it again, or set official=False"
    ):
        tasks.build(name).dataset("train")
    assert not list((tmp_path / "cache").rglob("*.npy")), "nothing half-written"


@pytest.mark.parametrize("name", tasks.names())
def test_docstrings_name_all_settings(name):
    text = "".join(inspect.getdoc(cls) or "" for cls in tasks.get(name).__mro__)
    for setting in tasks.parameters(name):
        assert f"{setting}:" in text or f"{setting}," in text, setting
