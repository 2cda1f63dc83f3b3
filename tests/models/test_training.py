"""Every head learns its tiny task, and training has no surprises: checkpointing, compiling, the Trainer."""

import pytest
import torch
from transformers import Trainer, TrainingArguments

from cosformer import attention
from cosformer.models import (
    CosformerForCausalLM,
    CosformerForConditionalGeneration,
    CosformerForMaskedLM,
    CosformerForSequenceClassification,
    CosformerForSequencePairClassification,
    PackingCollator,
)
from tests.models.tiny import MECHANISMS, build, close, config, gradients, having, tokens

# Those that every head can take; test_every_mechanism.py trains the others in the heads that suit them.
ABLE = [
    name
    for name in MECHANISMS
    if all(getattr(attention.traits(name), trait) for trait in ("causal", "bidirectional", "cross"))
]


def counting(batch):
    """Text that counts up from anywhere: each token says which comes next."""
    start = torch.randint(2, 10, (batch, 1))
    ids = start + torch.arange(12)
    return {"input_ids": ids, "labels": ids}


def masked(batch):
    """One token of a counting text is masked (token 1); its neighbours give it away."""
    ids = counting(batch)["input_ids"]
    place = torch.randint(1, 11, (batch, 1))
    labels = torch.full_like(ids, -100).scatter(1, place, ids.gather(1, place))
    return {"input_ids": ids.scatter(1, place, 1), "labels": labels}


def classified(batch):
    """Is there a token 5 in the text, which is padded somewhere?"""
    ids = torch.randint(6, 64, (batch, 12))
    labels = torch.arange(batch) % 2
    ids[labels == 1, 7] = 5
    mask = torch.ones_like(ids)
    mask[:, :3] = mask[:, 10:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def paired(batch):
    """Do both texts hold the same kind of tokens, low or high ones?"""
    kinds = torch.randint(0, 2, (2, batch))
    a, b = (torch.randint(2, 30, (batch, 9)) + 30 * kind[:, None] for kind in kinds)
    return {"input_ids": a, "pair_input_ids": b[:, :6], "labels": (kinds[0] == kinds[1]).long()}


def copied(batch):
    ids = torch.randint(2, 12, (batch, 6))
    return {"input_ids": ids, "labels": ids}


# head, task, settings, loss to reach (guessing stands at the logarithm of the number of choices)
LESSONS = [
    (CosformerForCausalLM, counting, {}, 0.2),
    (CosformerForMaskedLM, masked, {}, 0.3),
    (CosformerForSequenceClassification, classified, {"pooling": "mean"}, 0.1),
    (CosformerForSequenceClassification, classified, {"pooling": "max"}, 0.1),
    (CosformerForSequenceClassification, classified, {"pooling": "cls"}, 0.1),
    (CosformerForSequencePairClassification, paired, {}, 0.1),
    (CosformerForConditionalGeneration, copied, {}, 0.3),
]


def lessons():
    """Every head with every mechanism. In `make test`: with cosformer and softmax, and language models with
    all."""
    for mechanism in ABLE:
        for head, task, settings, goal in LESSONS:
            dear = head is not CosformerForCausalLM and mechanism not in ("cosformer", "softmax")
            name = f"{head.__name__}-{settings.get('pooling', '')}-{mechanism}"
            marks = [pytest.mark.thorough] if dear else []
            yield pytest.param(head, task, settings, goal, mechanism, marks=marks, id=name)


@pytest.mark.parametrize(("head", "task", "settings", "goal", "mechanism"), list(lessons()))
def test_every_head_learns(head, task, settings, goal, mechanism):
    torch.manual_seed(0)
    net = head(config(attention=mechanism, position="learned", initializer_range=0.05, **settings)).train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
    losses = []
    for _ in range(1000):
        loss = net(**task(32)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if len(losses) >= 10 and sum(losses[-10:]) / 10 < goal:
            break
    assert losses[0] > 2 * goal
    assert sum(losses[-10:]) / 10 < goal, losses[::100]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(
    ("head", "task"), [(CosformerForCausalLM, counting), (CosformerForConditionalGeneration, copied)]
)
@pytest.mark.parametrize("mechanism", ABLE)
def test_checkpointing_gives_equal_gradients(mechanism, head, task, reentrant):
    net = build(head, attention=mechanism, position="rotary").train()
    batch = task(3)
    plain = gradients(net, net(**batch).loss)
    net.gradient_checkpointing_enable({"use_reentrant": reentrant})
    checkpointed = net(**batch, use_cache=True)
    assert checkpointed.past_key_values is None
    close(gradients(net, checkpointed.loss), plain, 1e-10)


@pytest.mark.parametrize(
    ("pooling", "causal"), [("cls", False), ("mean", False), ("max", False), ("mean", True), ("max", True)]
)
def test_a_padded_batch_is_classified_as_each_alone(pooling, causal):
    net = build(CosformerForSequenceClassification, pooling=pooling, causal=causal, num_labels=3)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 0, 1], [1] * 8, [1, 1, 1, 0, 0, 0, 0, 0]])
    ids = tokens(3, 8)
    out = net(ids, attention_mask=mask).logits
    for i in range(3):
        close(out[i], net(ids[i][mask[i].bool()][None]).logits[0])
    nothing = net(ids, attention_mask=torch.zeros_like(mask)).logits
    assert nothing.isfinite().all()
    for name in ("cu_seqlens", "position_ids"):
        with pytest.raises(ValueError, match=f"{name} must be left out"):
            net(ids, **{name: torch.tensor([0, 8])})


def test_a_pair_is_two_towers():
    net = build(CosformerForSequencePairClassification)
    a, b, mask = tokens(2, 9), tokens(2, 6), torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
    out = net(a, pair_input_ids=b, pair_attention_mask=mask).logits
    alone = net(a[1:], pair_input_ids=b[1:, 2:]).logits
    close(out[1:], alone)
    swapped = net(b, attention_mask=mask, pair_input_ids=a).logits
    assert (swapped - out).abs().max() > 1e-3, "a - b tells the two apart"


@pytest.mark.parametrize("difference", ["signed", "absolute"])
def test_the_difference_of_a_pair(difference):
    """Where the classifier reads neither a nor b alone, an absolute difference leaves no order."""
    net = build(CosformerForSequencePairClassification, pair_difference=difference)
    with torch.no_grad():
        net.dense.weight[:, : 2 * net.config.hidden_size] = 0
    a, b = tokens(2, 9), tokens(2, 6)
    change = (net(a, pair_input_ids=b).logits - net(b, pair_input_ids=a).logits).abs().max()
    assert change < 1e-6 if difference == "absolute" else change > 1e-3
    with torch.no_grad():
        net.dense.weight[:, 2 * net.config.hidden_size : 3 * net.config.hidden_size] = 0
    one, other = (net(a, pair_input_ids=pair).logits for pair in (a, b))
    assert (one - other).abs().max() > 1e-3, "but it is read"


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_the_training_forward_compiles_whole(packed):
    net = build(CosformerForCausalLM, torch.float32, position="rotary", num_hidden_layers=1).train()
    step = torch.compile(lambda **batch: net(**batch).loss, fullgraph=True, backend="aot_eager")
    for length in (24, 31):
        ids = tokens(1 if packed else 2, length)
        batch = {"input_ids": ids, "labels": ids}
        if packed:
            batch["cu_seqlens"] = torch.tensor([0, 5, 5, length])
        else:
            batch["attention_mask"] = (torch.rand(2, length) < 0.8).long()
        expected = gradients(net, net(**batch).loss)
        close(gradients(net, step(**batch)), expected, 1e-4)


def test_restarts_compile_whole():
    """Bounds cannot be looked for inside a graph; the documents are kept apart all the same."""
    net = build(CosformerForCausalLM, torch.float32, position="learned", num_hidden_layers=1).train()
    step = torch.compile(lambda **batch: net(**batch).logits, fullgraph=True, backend="aot_eager")
    batch = {"input_ids": tokens(2, 8), "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4], [*range(8)]])}
    close(step(**batch), net(**batch).logits, 1e-4)


@having(causal=True)
def test_autocast(mechanism):
    """Half precision around float32 weights: near the float32 loss, all gradients finite."""
    net = build(CosformerForCausalLM, torch.float32, attention=mechanism, position="rotary").train()
    batch = counting(4)
    loss = net(**batch).loss
    with torch.autocast("cpu", torch.bfloat16):
        half = net(**batch).loss
    assert half.dtype == torch.float32
    close(half, loss, 0.05)
    assert all(g.isfinite().all() for g in gradients(net, half).values())


@pytest.mark.parametrize(
    ("head", "task", "options"),
    [
        (CosformerForCausalLM, counting, {}),
        (CosformerForCausalLM, counting, {"attention": ["cosformer", "linear"], "conv_size": 3}),
        (CosformerForMaskedLM, masked, {"attention_parameters": {"windows": [2, 5, 9, 64]}}),
        (CosformerForSequenceClassification, classified, {}),
    ],
    ids=["causal", "mixed", "windows", "classified"],
)
def test_the_gradients_of_each_sample(head, task, options):
    """By torch.func, of all samples at once: those of each alone."""
    torch.manual_seed(0)
    net, batch = build(head, **options).train(), task(3)
    weights = {name: x.detach() for name, x in net.named_parameters()}

    def loss(weights, sample):
        rows = {name: x[None] for name, x in sample.items()}
        return torch.func.functional_call(net, weights, (), rows)["loss"]

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, batch)
    for i in range(3):
        net.zero_grad()
        net(**{name: x[i : i + 1] for name, x in batch.items()}).loss.backward()
        for name, x in net.named_parameters():
            close(found[name][i], x.grad, 1e-6)


def test_the_trainer_trains_on_packed_documents(tmp_path):
    """The usual Trainer, our collator, a few steps: the loss falls, and all columns arrive. Resumed from its
    own checkpoint, another model ends with the same weights to the bit."""
    data = [{"input_ids": [*range(start, start + n)]} for n, start in [(5, 2), (9, 9), (12, 20), (7, 30)] * 8]
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=30,
        per_device_train_batch_size=4,
        learning_rate=5e-3,
        logging_steps=1,
        report_to=[],
        save_steps=20,
        use_cpu=True,
        disable_tqdm=True,
    )
    ends = []
    for seed, start in ((0, None), (1, str(tmp_path / "checkpoint-20"))):
        torch.manual_seed(seed)
        net = CosformerForCausalLM(config(initializer_range=0.05, dropout=0.1))
        trainer = Trainer(net, arguments, data_collator=PackingCollator(), train_dataset=data)
        trainer.train(resume_from_checkpoint=start)
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        assert len(losses) == 30
        assert losses[-1] < 0.5 * losses[0]
        ends.append((losses, net.state_dict()))
    (whole, expected), (resumed, found) = ends
    assert resumed == whole
    assert all(torch.equal(x, expected[name]) for name, x in found.items())


@pytest.mark.parametrize(("head", "task"), [x[:2] for x in LESSONS if x[2] in ({}, {"pooling": "mean"})])
def test_the_trainer_accumulates(tmp_path, head, task):
    """Four batches of two make the step of one of eight: its loss, and the size of its gradient."""
    torch.manual_seed(0)
    batch, made = task(8), []
    rows = [{name: column[i] for name, column in batch.items()} for i in range(8)]
    for accumulation in (1, 4):
        arguments = TrainingArguments(
            output_dir=str(tmp_path), max_steps=1, per_device_train_batch_size=8 // accumulation,
            gradient_accumulation_steps=accumulation, logging_steps=1, save_strategy="no", report_to=[],
            use_cpu=True, disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(build(head).train(), arguments, train_dataset=rows)
        trainer.train()
        told = trainer.state.log_history[0]
        made.append(torch.tensor([told["loss"], float(told["grad_norm"])]))
    close(made[1], made[0], 1e-3)  # the Trainer rounds them


@pytest.mark.parametrize(("head", "task"), [x[:2] for x in LESSONS if x[2] in ({}, {"pooling": "mean"})])
def test_the_trainer_evaluates(tmp_path, head, task):
    """A loss, and predictions for the metrics: of all rows, though batches are smaller."""
    torch.manual_seed(0)
    net, batch = build(head, loss_chunk=5), task(6)
    rows = [{name: column[i] for name, column in batch.items()} for i in range(6)]
    arguments = TrainingArguments(
        str(tmp_path), per_device_eval_batch_size=3, report_to=[], use_cpu=True, disable_tqdm=True
    )
    seen = []

    def metrics(predicted):
        seen.append(predicted)
        return {}

    found = Trainer(net, arguments, eval_dataset=rows, compute_metrics=metrics).evaluate()
    with torch.no_grad():
        expected = net.eval()(**batch)
    assert found["eval_loss"] == pytest.approx(float(expected.loss), rel=1e-4)
    (predicted,) = seen
    logits = predicted.predictions[0] if isinstance(predicted.predictions, tuple) else predicted.predictions
    assert logits.shape == expected.logits.shape
    assert (predicted.label_ids == batch["labels"].numpy()).all()
