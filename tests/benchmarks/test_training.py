"""The benchmarks of training: what they measure, and what they render."""

import math
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import compiled, enwik8_plan, learning, one_rank, one_rank_nccl, recall, training
from cosformer import reading, record_file, tasks
from cosformer.report.render import markdown
from cosformer.report.sections.learning import learned as learned_
from cosformer.report.sections.training import training_document
from cosformer.tasks.metrics import Accuracy, BitsPerCharacter
from cosformer.training import Run, recipes
from cosformer.training.loop import Loop
from tests.tasks import tiny
from tests.training.conftest import _toy  # noqa: F401 (a fixture)
from tests.training.toy import recall as tiny_recall
from tests.training.toy import toy

ROOT = Path(__file__).resolve().parents[2]


def told(records, absent):
    return markdown(learning.document(records, absent, "tiny", learning.FOLDS))


def test_the_trainer_is_measured_beside_the_bare_model(tmp_path):
    measured = training.measure(toy(workers=0, recipe="toy", steps=20, log_every=4), seconds=0.02)
    assert measured["share"] == measured["tokens_per_s"] / measured["bare_tokens_per_s"]
    assert measured["tokens_per_s"] > 0
    data = {
        "scale": "tiny", "measured": [measured], "absent": {"enwik8": "no such file"},
        "hardware": {"cpu": "x"}, "versions": {"torch": "2"}, "commit": {"id": "abc", "dirty": True},
        "date": "today",
    }  # fmt: skip
    text = markdown(training_document(data))
    assert f"The lowest share is {measured['share']:.0%}; at least 40% was promised." in text
    assert "no such file" in text
    assert "commit abc, with local changes; today." in text


def test_compiled_training_is_measured_beside_eager(monkeypatch):
    run = tiny_recall(workers=0, steps=20, eval_every=20, compile_backend="aot_eager", model={"dropout": 0.0})
    found = compiled.compared(run)
    assert (found["eager"]["graphs"], found["compiled"]["graphs"]) == (0, 1)
    assert found["losses_apart"] < 1e-4
    planned = compiled.variant(enwik8_plan.OURS, steps=30)
    assert planned.model["qk_norm"]
    assert planned.learning_rate == compiled.RATE
    monkeypatch.setattr(compiled, "NEAR", 0.0)
    with pytest.raises(RuntimeError, match="the losses of the first 20 steps differ"):
        compiled.compared(run)


def test_one_process_of_a_launcher_is_measured_beside_none(monkeypatch):
    ways = []
    # Else accelerate sets the threads of this process, and a later test that forks it would hang.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(one_rank, "bare", lambda run, seconds: 100.0)
    base = Loop.backward

    def looked(self, parts):
        ways.append((type(self.model).__name__, self.mesh.alone))
        return base(self, parts)

    monkeypatch.setattr(Loop, "backward", looked)
    saved = []
    found = one_rank.measure(tiny_recall(workers=0, steps=12), rounds=1, seconds=0.0, save=saved.append)
    assert saved == [found]
    assert set(ways) == {("CosformerForCausalLM", True)}, "one process is alone, launched or not"
    assert found["share_of_bare"] == found["tokens_per_s"]["alone"] / 100
    assert found["share_of_alone"] == found["tokens_per_s"]["launched"] / found["tokens_per_s"]["alone"]
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps", "0"], "positive whole number"),
        (["--variant", "nonsense"], "nonsense"),
        (["--out", "nowhere/x.json"], "there is no folder nowhere"),
        ([], "enwik8/enwik8 is missing"),
    ],
)
def test_mistakes_of_one_rank_are_one_sentence(words, said, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("COSFORMER_DATA", str(tmp_path))
    with pytest.raises(SystemExit) as stopped:
        one_rank.main(words)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


def test_one_process_asks_of_the_group_what_many_would(monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    one_rank_nccl.main()
    assert "'operator': 0.0" in capsys.readouterr().out
    monkeypatch.setattr(one_rank_nccl, "check", lambda device: {"all-gather": 0.1})
    with pytest.raises(SystemExit, match="must be zero"):
        one_rank_nccl.main()


def test_the_sweep_counts_states_and_renders_records(tmp_path):
    planned = [run for _, run in recall.runs("tiny", ["cosformer", "softmax"], [32, 64], seed=3)]
    assert len(planned) == 8
    assert {(r.task, r.seed) for r in planned} == {("mqar", 3), ("copy", 3)}
    sizes = {(r.attention, r.model["hidden_size"]): recall.state_size(r) for r in planned if r.task == "mqar"}
    heads, layers, length = 2, 2, 32
    for width in (32, 64):
        d = width // heads
        assert sizes["cosformer", width] == layers * heads * 2 * (d * d + d), "numerators and denominators"
        assert sizes["softmax", width] == layers * heads * 2 * d * length, "keys and values"
    for number, run in enumerate([*planned, planned[0]]):
        metric = {"test": {"accuracy": number / 10, "exact": 0.0}}
        record = {
            "id": str(number), "settings": run.to_dict(), "metric": metric, "threads": 1,
            "mechanism": run.mechanism,
            "hardware": {"cpu": "a CPU"}, "commit": {"id": "c" * 40},
        }  # fmt: skip
        record_file.append_once(tmp_path / f"{run.task}.jsonl", record, "id")
    found = recall.points(tmp_path, "tiny")
    assert len(found) == 8
    newest = next(p for p in found if (p["task"], p["attention"], p["width"]) == ("mqar", "cosformer", 32))
    assert newest["accuracy"] == 0.8, "of two records of the same run the later one counts"
    recall.render(tmp_path, "tiny", tmp_path)
    text = (tmp_path / "recall-tiny.md").read_text().replace("  ", " ")
    assert "| softmax | 64 |" in text
    assert "--scale tiny`, on a CPU, 1 thread; commit cccccccccc." in text
    assert (tmp_path / "recall-tiny.png").stat().st_size > 10_000
    with pytest.raises(SystemExit, match="no record at scale paper"):
        recall.render(tmp_path, "paper", tmp_path)


@pytest.mark.parametrize("name", recall.VARIANTS)
def test_a_record_of_the_sweep_says_which_variant_it_is_of(name):
    (_, run), *_ = recall.runs("cpu", [name], [8], seed=0)
    assert recall.variant({"settings": run.to_dict(), "mechanism": run.mechanism}) == name
    assert recall.state_size(run) > 0


def test_the_recorded_sweep_is_complete_and_rendered_from_its_records():
    found = recall.points(ROOT / "results", "cpu")
    wanted = [(t, a, w) for t in recall.TASKS for a in recall.VARIANTS for w in recall.WIDTHS["cpu"]]
    assert sorted((p["task"], p["attention"], p["width"]) for p in found) == sorted(wanted)
    report = (ROOT / "benchmarks/reports/recall-cpu.md").read_text()
    assert report == markdown(recall.document(found, "cpu"), picture="recall-cpu.png")
    assert not any(p["record"]["commit"]["dirty"] for p in found)
    for task in recall.TASKS:
        score = {(p["attention"], p["width"]): p["accuracy"] for p in found if p["task"] == task}
        assert score["softmax", 64] > 0.95, "else what the others lack need not be their state"
        assert score["cosformer", 8] < score["cosformer", 64] - 0.2


def test_recorded_learning_is_rendered_from_its_records():
    records = reading.json_lines(ROOT / "results/learning-tiny.jsonl")
    pairs = [(r["task"], r["mechanism"]) for r in records]
    assert sorted(set(pairs)) == sorted(pairs)
    assert {m for _, m in pairs} == {"softmax", "cosformer"}
    assert not any(r["commit"]["dirty"] for r in records)
    absent = sorted({*recipes.names()} - {task for task, _ in pairs})
    assert (ROOT / "results/learning-tiny.md").read_text() == told(records, absent)


def test_the_scale_of_one_core_has_its_own_settings():
    planned = [run for _, run in recall.runs("cpu", ["relu"], recall.WIDTHS["cpu"], seed=0)]
    assert [(r.task, r.model["hidden_size"]) for r in planned] == [
        (task, width) for task in ("mqar", "copy") for width in (8, 16, 32, 64)
    ]
    assert {(r.scale, r.device, r.model["num_attention_heads"]) for r in planned} == {("cpu", "cpu", 1)}


def score(task):
    return task.metric.score(learning.counted(task))


def test_chance_is_what_counting_scores():
    task = tasks.build("toy", rows=101)
    data = task.dataset("test")
    ones = sum(int(data[i]["labels"]) for i in range(101)) / 101
    train_ones = sum(int(task.dataset("train")[i]["labels"]) for i in range(101)) / 101
    assert score(task)["accuracy"] == pytest.approx(ones if train_ones > 0.5 else 1 - ones)
    run = tiny_recall()
    assert 0 < score(tasks.build("mqar", **run.task_settings))["accuracy"] < 0.5


def test_chance_of_a_language_model_is_its_unigram_entropy(tiny_text):
    """Equal frequencies of four letters: two bits each."""
    task = tasks.build("enwik8", official=False, length=32)
    assert score(task)["bits_per_character"] == pytest.approx(2, abs=0.05)


@pytest.mark.parametrize(("right", "learned"), [(140, True), (112, False), (100, False), (60, False)])
def test_a_task_is_learned_where_the_margin_is_no_accident(right, learned):
    """Of 200 labels, half are 1 and chance says 1 everywhere: a difference of two independent shares of one
    half has a standard error of sqrt(1/2 / 200) = 0.05."""
    label = torch.arange(200) % 2
    predicted = torch.where(torch.arange(200) < right, label, 1 - label)
    own, chance = torch.stack([predicted, label], -1), torch.stack([torch.ones(200), label], -1)
    found = learning.margin(Accuracy(), own, chance)
    assert found["better_by"] == pytest.approx(right / 200 - 0.5)
    assert found["standard_error"] == pytest.approx(0.05, abs=0.006)
    assert found["rows"] == 200
    assert learned_({"margin": found}) == learned


def test_folds_count_together_where_the_test_split_is_too_small(tmp_path, monkeypatch):
    monkeypatch.setenv("COSFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COSFORMER_DATA", str(tmp_path / "data"))
    tiny.TASKS["rte"][0]()  # 20 rows in each of the official parts
    run = Run(
        task="rte", task_settings={"official": False, "apart": True}, steps=2, batch_size=4, eval_every=1,
        learning_rate=0.01, device="cpu", data="loader",
        model={"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2},
    )  # fmt: skip
    assert [part.task_settings["fold"] for part in learning.parts(run)] == [0, 1, 2, 3, 4]
    record = learning.trained(run, tmp_path / "run")
    assert record["margin"]["rows"] == 20
    tests = [fold["metric"]["test"]["accuracy"] for fold in record["folds"]]
    assert record["metric"]["test"]["accuracy"] == pytest.approx(sum(tests) / 5), "four rows each"
    assert record["wall_time_s"] == max(fold["wall_time_s"] for fold in record["folds"])
    assert record["settings"] == run.to_dict()
    assert record["chance"]["accuracy"] == 0.5, "of all rows, though no fold leaves as many of each label"
    assert learning.parts(tiny_recall()) == [tiny_recall()], "a task without folds"
    monkeypatch.setattr(learning, "FEW", 20)
    assert learning.parts(run) == [run], "enough rows"


def test_less_is_better_where_the_metric_says_so():
    bits = torch.tensor([[10.0, 4, 1]]).repeat(50, 1)
    more = bits * torch.tensor([2.0, 1, 1])
    found = learning.margin(BitsPerCharacter(), bits, more)
    assert found["better_by"] == pytest.approx(10 / 4 / math.log(2))
    assert learning.margin(BitsPerCharacter(), more, bits)["better_by"] == -found["better_by"]


def test_the_table_has_the_newest_records_and_names_what_failed():
    def record(task, commit, by):
        return {
            "task": task, "mechanism": "softmax", "seed": 0, "steps": 1000, "threads": 1, "wall_time_s": 9.7,
            "metric": {"name": "accuracy", "test": {"accuracy": 0.5 + by}}, "chance": {"accuracy": 0.5},
            "margin": {"better_by": by, "standard_error": 0.01, "rows": 2000}, "hardware": {"cpu": "a CPU"},
            "commit": {"id": commit},
        }  # fmt: skip

    records = [record("copy", "a" * 40, 0.0), record("copy", "b" * 40, 0.3), record("rte", "b" * 40, 0.015)]
    text = told(records, ["qqp"]).replace("  ", " ")
    assert "seed 0, on a CPU with 1 thread, commit bbbbbbbbbb." in text
    assert "0.8000" in text
    assert "Not learned in this time: rte with softmax." in text
    assert "Left out, for their files were not there: qqp." in text
    assert "cross-validation" not in text
    text = told([*records[:2], records[2] | {"folds": []}], [])
    assert "The official development set of rte has fewer than 500 rows" in text


@pytest.fixture
def tiny_text(tmp_path, monkeypatch):
    monkeypatch.setenv("COSFORMER_DATA", str(tmp_path))
    (tmp_path / "enwik8").mkdir()
    letters = torch.randint(4, (40_000,), generator=torch.Generator().manual_seed(0))
    (tmp_path / "enwik8" / "enwik8").write_bytes(bytes((letters + 97).tolist()))


@pytest.mark.parametrize(
    ("option", "said"),
    [("--recipes=mqar,rtee", "no recipe 'rtee'"), ("--attentions=softmax,softmx", "'softmx'")],
    ids=str,
)
def test_a_mistake_is_found_before_anything_is_trained(option, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(learning, "trained", lambda run, folder: pytest.fail("it began"))
    monkeypatch.setattr("sys.argv", ["learning", option, f"--out={tmp_path}", f"--folder={tmp_path}"])
    with pytest.raises(SystemExit) as left:
        learning.main()
    assert left.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [["--recipes", "nothing"], ["--steps", "0"]], ids=" ".join)
def test_a_mistake_is_a_sentence(wrong, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["training", *wrong])
    with pytest.raises(SystemExit, match=r"^2$"):
        training.main()
    said = capsys.readouterr().err
    assert wrong[0].strip("-")[:5] in said
