"""What training promises beside surviving: the same figures however a run is spread, evaluated or fed."""

import json
import shutil

import pytest
import torch

from cosformer import machine, reading, tasks
from cosformer.models import CosformerForCausalLM, CosformerForSequenceClassification
from cosformer.training import best, checkpoint, evaluate, evaluation, main, model, parallel, train
from cosformer.training.clock import Clock
from cosformer.training.device_dataset import DeviceDataset
from cosformer.training.loader import LoaderDataset
from cosformer.training.loop import Loop
from cosformer.training.objective import Objective
from cosformer.training.status import Status
from tests.training.toy import Toy, recall, toy

STILL = {"model": {"dropout": 0.0}, "workers": 0, "steps": 5}


def trained(folder, run, **options):
    return train(run, folder, progress=False, results=folder / "results.jsonl", **options)


def losses(folder):
    return [
        (line["loss"], line["grad_norm"])
        for line in reading.json_lines(folder / "log.jsonl")
        if "loss" in line
    ]


@pytest.fixture(scope="module", params=[toy, recall], ids=["classification", "language"])
def pair(request, tmp_path_factory):
    """A way to make runs, and the folder of one."""
    folder = tmp_path_factory.mktemp("plain")
    trained(folder, request.param(**STILL))
    return request.param, folder


@pytest.mark.parametrize("parts", [1, 8])
def test_accumulation_changes_nothing(pair, tmp_path, parts):
    """Neither the loss nor the gradient: each part counts by its items, not as one of so many."""
    make, plain = pair
    trained(tmp_path, make(**STILL, accumulation=parts))
    torch.testing.assert_close(
        torch.tensor(losses(tmp_path)), torch.tensor(losses(plain)), rtol=2e-5, atol=1e-6
    )


def test_the_first_loss_is_the_mean_over_the_batch(tmp_path):
    """Over the tokens asked for, which are unevenly many in the parts: by hand."""
    seen = []
    base = Loop.backward

    def ragged(self, parts):
        for part in parts:
            part["labels"][:-1] = -100
            part["labels"][-1, -3:] = part["input_ids"][-1, -3:]
        parts[0]["labels"][:] = parts[0]["input_ids"]
        seen.append([{k: x.clone() for k, x in part.items()} for part in parts])
        return base(self, parts)

    run = recall(**STILL | {"steps": 2})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "backward", ragged)
        trained(tmp_path, run)
    net = model.build(run, tasks.build("mqar", **run.task_settings))
    total, count = 0.0, 0
    for part in seen[0]:
        logits = net(part["input_ids"]).logits[:, :-1]
        labels = part["labels"][:, 1:]
        total += torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).double(), labels.flatten(), ignore_index=-100, reduction="sum"
        ).item()
        count += int((labels != -100).sum())
    assert losses(tmp_path)[0][0] == pytest.approx(total / count, rel=1e-6)


def test_samples_on_the_device_are_those_of_the_loader(pair, tmp_path):
    make, plain = pair
    trained(tmp_path, make(**STILL | {"data": "loader", "workers": 2}))
    assert losses(tmp_path) == losses(plain)


def test_texts_of_similar_length_together(tmp_path):
    """From the device and from the loader alike, and a run that goes on ends as one that was not cut off."""
    run = toy(group_by_length=True, task_settings={"rows": 60}, workers=0, save_total_limit=9)
    trained(tmp_path / "whole", run)
    trained(tmp_path / "loader", run.replace(data="loader", workers=2))
    assert losses(tmp_path / "loader") == losses(tmp_path / "whole")
    unwanted = shutil.ignore_patterns("record.json", "results.jsonl", "checkpoint-8", "checkpoint-12")
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed", ignore=unwanted)
    trained(tmp_path / "resumed", run)
    assert losses(tmp_path / "resumed") == losses(tmp_path / "whole")
    weights = [(tmp_path / folder / checkpoint.name(12) / "model.safetensors").read_bytes()
               for folder in ("resumed", "whole")]  # fmt: skip
    assert weights[0] == weights[1]
    trained(tmp_path / "drawn", run.replace(group_by_length=False))
    assert losses(tmp_path / "drawn") != losses(tmp_path / "whole")


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_change_do_so_in_every_epoch(tmp_path, workers):
    """Also where workers fetch them, and also in a batch that lies across two epochs."""
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        base = Loop.backward

        def noted(self, parts):
            seen.extend(tuple(row[row != 2].tolist()) for part in parts for row in part["input_ids"])
            return base(self, parts)

        patch.setattr(Loop, "backward", noted)
        run = toy(**STILL | {"workers": workers, "steps": 6}, task_settings={"rows": 12, "changing": True})
        trained(tmp_path, run)
    data = tasks.build("toy", **run.task_settings).dataset("train")
    for epoch in range(4):
        data.set_epoch(epoch)
        expected = sorted(tuple(data[i]["input_ids"].tolist()) for i in range(12))
        assert sorted(seen[12 * epoch : 12 * (epoch + 1)]) == expected


@pytest.mark.parametrize("kept", [True, False], ids=["on the device", "from the loader"])
def test_the_score_does_not_depend_on_the_batch_size(pair, monkeypatch, kept):
    """Every sample counts once, at any batch size and on any path; also the last ones of a split."""
    make, folder = pair
    if not kept:
        monkeypatch.setattr(main, "LIMIT", 0)
    record = reading.json_file(folder / "record.json")
    metric, samples = type(_metric(make().task)), {}
    rows = metric.rows

    for batch in (1, 7, 32):

        def noted(self, *args, batch=batch):
            found = rows(self, *args)
            samples[batch] = torch.cat([samples.get(batch, found[:0]), found])
            return found

        monkeypatch.setattr(metric, "rows", noted)
        assert evaluate(folder, "test", batch_size=batch) == record["metric"]["test"]
        assert len(samples[batch]) == (23 if make is toy else 13)
        assert torch.equal(samples[batch], samples[1])
    assert evaluate(folder, "valid", batch_size=5) == record["metric"]["valid"]


def _metric(name):
    return tasks.build(name).metric


def test_a_split_is_scored_by_length_and_told_in_its_own_order():
    """The same of each sample as one by one; a part of the split, and a last batch that is short, too."""
    task, cpu = Toy(rows=23), torch.device("cpu")
    data = task.dataset("valid")
    net = model.build(toy(model={"position": "rotary"}), task)
    seen = []
    net.register_forward_pre_hook(
        lambda _, __, given: seen.append(given["input_ids"].shape[1]), with_kwargs=True
    )

    def rows(source, indices, batch):
        seen.clear()
        return evaluation.statistics(
            net, task, source, indices, batch=batch, precision="fp32", device=cpu, more=1
        )

    kept = DeviceDataset(task, data, device=cpu, shapes=None)
    loaded = LoaderDataset(task, data, workers=0, device=cpu)
    for indices in (range(23), range(4, 11), range(0)):
        alone = torch.cat([rows(loaded, [i], 1) for i in indices]) if indices else torch.empty(0, 2)
        assert torch.equal(rows(loaded, indices, 5), alone)
        assert torch.equal(rows(kept, indices, 5), alone)
        if indices:
            assert 0 < alone[:, 0].mean() < 1, "else any order would do"
            assert seen[:-1] == sorted(seen[:-1], reverse=True), "the longest first"
            assert len(seen) == -(-len(indices) // 5) + 1


def test_how_often_a_run_is_evaluated_changes_nothing_it_learns(tmp_path):
    for every in (3, 12):
        trained(tmp_path / str(every), toy(workers=0, steps=5, eval_every=every))
    assert losses(tmp_path / "3") == losses(tmp_path / "12")


@pytest.mark.parametrize("lower", [False, True], ids=["higher is better", "lower is better"])
def test_early_stopping_and_one_test_at_the_best(tmp_path, monkeypatch, lower):
    """The best validation score is at step 4; two evaluations later the run ends, and is tested there."""
    curve = {2: 0.5, 4: 0.9, 6: 0.7, 8: 0.9}
    tested = []

    def score(self, split):
        if split == "test":
            weights = {k: x.clone() for k, x in self.net.state_dict().items()}
            tested.append(weights)
            return {"accuracy": 0.4}
        value = curve[self.status.step]
        return {"accuracy": 1 - value if lower else value}

    monkeypatch.setattr(Loop, "score", score)
    monkeypatch.setattr(type(_metric("toy")), "higher_is_better", not lower)
    record = trained(tmp_path, toy(workers=0, eval_every=2, save_every=100, patience=2, save_total_limit=1))
    assert record["steps"] == 8
    assert record["stopped_early"]
    assert record["metric"]["best_step"] == 4
    assert record["metric"]["test"] == {"accuracy": 0.4}
    assert len(tested) == 1
    assert checkpoint.steps(tmp_path) == [4, 8]
    kept = CosformerForSequenceClassification.from_pretrained(best(tmp_path)).state_dict()
    assert best(tmp_path).name == "checkpoint-4"
    assert all(torch.equal(kept[k], tested[0][k]) for k in kept)


def test_a_score_that_is_not_a_number_is_never_the_best():
    status, metric = Status(step=3), _metric("toy")
    assert not status.judge({"accuracy": float("nan")}, metric)
    assert status.judge({"accuracy": 0.1}, metric)
    assert not status.judge({"accuracy": 0.1}, metric), "only a better one is better"


def test_mixed_precision(tmp_path, monkeypatch):
    """bfloat16 in the forward pass, float32 in the weights and in what is saved."""
    seen = set()
    base = Objective.loss

    def looked(self, model, *args):
        hook = model.model.layers[0].register_forward_hook(lambda m, i, o: seen.add(o[0].dtype))
        linear = model.model.layers[0].feed_forward.register_forward_hook(lambda m, i, o: seen.add(o.dtype))
        loss = base(self, model, *args)
        hook.remove()
        linear.remove()
        return loss

    monkeypatch.setattr(Objective, "loss", looked)
    record = trained(tmp_path, recall(**STILL, precision="bf16"))
    assert torch.bfloat16 in seen
    net = CosformerForCausalLM.from_pretrained(best(tmp_path))
    assert {p.dtype for p in net.parameters()} == {torch.float32}
    assert net.config.use_cache, "what is saved must generate with its state"
    assert record["settings"]["precision"] == "bf16"


def test_gradient_checkpointing(pair, tmp_path):
    make, plain = pair
    trained(tmp_path, make(**STILL, gradient_checkpointing=True))
    torch.testing.assert_close(
        torch.tensor(losses(tmp_path)), torch.tensor(losses(plain)), rtol=1e-4, atol=1e-5
    )


def test_clipping_limits_the_step_and_reports_the_norm_before(pair, tmp_path):
    make, plain = pair
    trained(tmp_path, make(**STILL, max_grad_norm=None))
    assert losses(tmp_path)[0] == losses(plain)[0], "the first norm is taken before clipping"
    assert losses(plain)[0][1] > 1, "and it was above the limit"


def test_only_matrices_decay():
    run = toy(**STILL | {"steps": 1})
    net = model.build(run, tasks.build("toy"))
    names = {id(p): n for n, p in net.named_parameters()}
    groups = {
        group["weight_decay"]: {names[id(p)] for p in group["params"]}
        for group in parallel.adamw(net, run, torch.device("cpu")).param_groups
    }
    assert all("bias" in n or "norm" in n for n in groups[0.0])
    assert not any("bias" in n or "norm" in n for n in groups[0.1])
    assert {"model.embed_tokens.weight", "score.weight"} <= groups[0.1]
    assert groups[0.0]


def test_weights_of_another_run_to_start_from(tmp_path):
    """A classifier on the body of a trained language model."""
    body = {**STILL, "steps": 2, "model": {"dropout": 0.0, "max_position_embeddings": 32, "vocab_size": 16}}
    trained(tmp_path / "first", recall(**body))
    start = best(tmp_path / "first")
    trained(tmp_path / "second", toy(**body, initial=str(start), learning_rate=1e-9, weight_decay=0.0))
    before = CosformerForCausalLM.from_pretrained(start).model.state_dict()
    after = CosformerForSequenceClassification.from_pretrained(best(tmp_path / "second")).model.state_dict()
    for name, x in before.items():
        torch.testing.assert_close(after[name], x, rtol=0, atol=1e-6)


@pytest.mark.parametrize("given", ["run", "checkpoint"])
def test_a_run_or_a_checkpoint_to_start_from(tmp_path, given):
    """Of a run, the best weights: those that `evaluate` scores."""
    run = recall(**STILL | {"steps": 4}, eval_every=2, save_every=1, save_total_limit=9)
    trained(tmp_path / "run", run)
    start = checkpoint.name(3) if given == "checkpoint" else ""
    net = model.build(
        run.replace(initial=str(tmp_path / "run" / start)), tasks.build("mqar", **run.task_settings)
    )
    chosen = tmp_path / "run" / start if start else best(tmp_path / "run")
    wanted = CosformerForCausalLM.from_pretrained(chosen).state_dict()
    assert all(torch.equal(x, wanted[name]) for name, x in net.state_dict().items())
    (chosen / "model.safetensors").write_bytes(b"")
    if start:
        with pytest.raises(ValueError, match=r"model.safetensors has 0 bytes .* Give the run's folder"):
            best(chosen)


def test_a_checkpoint_is_scored_by_itself(tmp_path):
    run = toy(workers=0, eval_every=2, save_every=2, save_total_limit=9, learning_rate=0.03)
    trained(tmp_path, run)
    log = reading.json_lines(tmp_path / "log.jsonl")
    noted = {e["step"]: e["accuracy"] for e in log if e.get("event") == "valid"}
    assert len(set(noted.values())) > 1, "or which one was scored would not show"
    for step, accuracy in noted.items():
        assert evaluate(tmp_path / checkpoint.name(step), "valid")["accuracy"] == accuracy


def test_random_features_are_drawn_anew_and_resumed(tmp_path, monkeypatch):
    run = recall(
        workers=0,
        attention="performer",
        model={"attention_parameters": {"redraw_interval": 5, "features": 8}},
    )
    trained(tmp_path / "whole", run)
    with monkeypatch.context() as patch:
        backward = Loop.backward

        def fails(self, parts):
            if self.status.step == 9:
                raise OSError("stop")
            return backward(self, parts)

        patch.setattr(Loop, "backward", fails)
        with pytest.raises(OSError, match="stop"):
            trained(tmp_path / "run", run)
    trained(tmp_path / "run", run)
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    buffers = [
        dict(CosformerForCausalLM.from_pretrained(tmp_path / "run" / name).named_buffers())
        for name in ("checkpoint-8", "checkpoint-12")
        if (tmp_path / "run" / name).is_dir()
    ]
    assert len(buffers) == 2
    assert any(not torch.equal(buffers[0][n], buffers[1][n]) for n in buffers[0])


def test_progress_says_how_far_it_is(tmp_path):
    events = []
    train(toy(workers=0), tmp_path, progress=events.append, results=tmp_path / "results.jsonl")
    assert events[0] == {"step": 0, "steps": 12}
    assert events[-1]["done"]
    assert [e["step"] for e in events] == sorted(e["step"] for e in events)
    assert all(json.dumps(e) for e in events)
    assert {"loss", "learning_rate", "tokens_per_s", "accuracy", "seconds_left"} <= set(events[-2])
    assert events[-2]["seconds_left"] == 0
    told = [(e["step"], e["evaluating"]) for e in events if "evaluating" in e]
    assert told == [(6, "valid 0%"), (12, "valid 0%"), (12, "test 0%")]


@pytest.mark.skipif(machine.resident("VmHWM") is None, reason="the system does not tell a process its peak")
def test_the_peak_of_a_run_is_not_that_of_what_came_before():
    cpu = torch.device("cpu")
    large = torch.ones(100 * 2**20)
    before = machine.peak_memory(cpu)
    del large
    Clock(cpu)
    assert machine.peak_memory(cpu) < before - 200 * 2**20


def test_a_name_is_no_run(tmp_path):
    with pytest.raises(TypeError, match=r"run must be a Run, as recipes\.build.* but got str"):
        train("mqar", tmp_path)
