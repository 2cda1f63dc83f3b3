"""A model whose sequences are split over a group is the model: hidden states, losses, gradients."""

import copy

import pytest
import torch
import torch.distributed as dist

from cosformer.distributed import gather_sequence
from cosformer.models import (
    CosformerConfig,
    CosformerForCausalLM,
    CosformerForMaskedLM,
    CosformerForSequenceClassification,
    sequence_parallel,
    shard_batch,
)

SMALL = {
    "vocab_size": 32,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 40,
    "intermediate_size": 48,
    "initializer_range": 0.25,
}
MODELS = {
    "causal": (CosformerForCausalLM, {}),
    "both ways": (CosformerForMaskedLM, {}),
    "rotary": (CosformerForCausalLM, {"position": "rotary"}),
    "learned": (CosformerForMaskedLM, {"position": "learned"}),
    "everything": (
        CosformerForCausalLM,
        {
            "conv_size": 4, "qk_norm": True, "output_norm": True, "output_gate": "silu", "position": "rotary",
            "attention_parameters": {"windows": [3, None]}, "norm": "rms", "feed_forward": "gated",
        },
    ),
    "windows both ways": (
        CosformerForMaskedLM,
        {"conv_size": 3, "attention_parameters": {"windows": [4, 16]}, "pre_norm": False},
    ),
    "mixed": (
        CosformerForCausalLM,
        {
            "attention": ["cosformer", "softmax"], "position": "rotary",
            "attention_parameters": [{"windows": [None, 5]}, {"windows": [4, None]}],
        },
    ),
    "hybrid": (
        CosformerForCausalLM,
        {
            "attention": ["cosformer", "softmax"], "position": "rotary",
            "attention_parameters": [{"windows": [2, 5]}, {"windows": [4, 9]}],
        },
    ),
    "hybrid both ways": (
        CosformerForMaskedLM,
        {"attention": ["softmax", "cosformer"], "attention_parameters": {"windows": [3, 8]}},
    ),
    "pairs of classes": (CosformerForCausalLM, {"head_loss": "one_vs_each"}),
    "loss in chunks": (CosformerForCausalLM, {"loss_chunk": 5}),
    "mean": (CosformerForSequenceClassification, {"pooling": "mean"}),
    "max": (CosformerForSequenceClassification, {"pooling": "max", "causal": True}),
    "cls": (CosformerForSequenceClassification, {"pooling": "cls"}),
}  # fmt: skip


def build(name, dtype=torch.float32):
    kind, options = MODELS[name]
    torch.manual_seed(1)
    return kind(CosformerConfig.paper(**SMALL, **options)).to(dtype).train()


def batch_of(kind, model, size):
    g = torch.Generator().manual_seed(3)
    length = {"whole": 6 * size, "longest": 40, "uneven packed": 6 * size - 1}.get(kind, 5 * size + 1)
    rows = 1 if "packed" in kind else 3
    ids = torch.randint(0, 32, (rows, length), generator=g)
    batch = {"input_ids": ids, "labels": ids.clone()}
    if kind in ("right", "left"):
        counts = torch.tensor([length, 2, length // 2 + 1])
        mask = torch.arange(length) < counts[:, None]
        batch["attention_mask"] = (mask if kind == "right" else mask.flip(1)).long()
    if "packed" in kind:
        batch["cu_seqlens"] = torch.tensor([0, 2, 2, length // 2 + 2, length - 1, length])
    if isinstance(model, CosformerForMaskedLM):
        batch["labels"][torch.rand(ids.shape, generator=g) < 0.6] = -100
        if "attention_mask" in batch:
            batch["labels"][batch["attention_mask"] == 0] = -100
    elif isinstance(model, CosformerForSequenceClassification):
        batch["labels"] = torch.tensor([0, 1, 1])
    return batch


def gradients(model):
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def mean_gradients(model, group):
    found = gradients(model)
    every = torch.cat([grad.flatten() for grad in found.values()])
    dist.all_reduce(every, group=group.group)
    parts = every.div_(group.size).split([grad.numel() for grad in found.values()])
    return {n: part.view_as(grad) for (n, grad), part in zip(found.items(), parts, strict=True)}


def compared(found, expected, tolerance):
    """Relative to the largest gradient of the model."""
    assert found.keys() == expected.keys()
    scale = max(x.abs().max() for x in expected.values()).clamp_min(1)
    for name, x in expected.items():
        error = (found[name] - x).abs().max() / scale
        assert error < tolerance, f"{name}: {error}"


def hidden_states(group, names, kinds):
    """What every token gets, and its gradients, in float64 (transformers' losses are float32 at best)."""
    for name in names:
        whole = build(name, torch.float64).model
        split = sequence_parallel(copy.deepcopy(whole), group)
        for kind in kinds:
            batch = batch_of(kind, whole, group.size)
            del batch["labels"]
            shard = shard_batch(batch, group, causal=bool(whole.config.causal))
            length = shard["input_ids"].shape[1]
            weight = torch.randn(3, length * group.size, 32, dtype=torch.float64)
            try:
                expected = whole(**batch).last_hidden_state
                found = split(**shard).last_hidden_state
                own = slice(group.rank * length, min((group.rank + 1) * length, expected.shape[1]))
                real = batch.get("attention_mask", torch.ones(expected.shape[:2]))[:, own, None]
                wanted, got = expected[:, own] * real, found[:, : real.shape[1]] * real
                assert (got - wanted).abs().max() < 1e-10
                rows = slice(0, len(expected))
                mask = batch.get("attention_mask", torch.ones(expected.shape[:2]))[..., None]
                (expected * mask * weight[rows, : expected.shape[1]]).sum().backward()
                (got * weight[rows, own]).sum().backward()
                summed = {name: x * group.size for name, x in mean_gradients(split, group).items()}
                compared(summed, gradients(whole), 1e-10)
            except Exception as error:
                raise AssertionError(f"{name}, {kind}") from error
            whole.zero_grad()
            split.zero_grad()


def losses(group, names, kinds, checkpointing=False):
    """Loss and gradients of heads, in float32."""
    for name in names:
        whole = build(name)
        split = sequence_parallel(copy.deepcopy(whole), group)
        if checkpointing:
            split.gradient_checkpointing_enable()
        for kind in kinds:
            if "packed" in kind and isinstance(whole, CosformerForSequenceClassification):
                continue
            batch = batch_of(kind, whole, group.size)
            try:
                expected = whole(**batch)
                expected.loss.backward()
                found = split(**shard_batch(batch, group, causal=bool(whole.config.causal)))
                found.loss.backward()
                assert abs(found.loss - expected.loss) < 1e-5 * max(1, abs(expected.loss))
                compared(mean_gradients(split, group), gradients(whole), 1e-5)
            except Exception as error:
                raise AssertionError(f"{name}, {kind}") from error
            whole.zero_grad()
            split.zero_grad()


@pytest.mark.parametrize(
    ("size", "kinds"), [(2, ("uneven", "packed")), (3, ("right", "packed")), (4, ("right", "uneven"))]
)
def test_hidden_states(workers, size, kinds):
    names = ("rotary", "learned", "everything", "windows both ways", "mixed", "hybrid", "hybrid both ways")
    workers.run(hidden_states, names, kinds, size=size)


@pytest.mark.parametrize(
    ("size", "names", "kinds"),
    [
        (2, ("causal", "both ways", "pairs of classes", "max"), ("whole", "left", "packed")),
        (3, tuple(MODELS), ("uneven", "left")),
        (3, ("causal", "learned"), ("longest", "uneven packed")),
        (4, ("everything", "mixed", "windows both ways", "mean"), ("right", "uneven packed")),
    ],
)
def test_losses_and_gradients(workers, size, names, kinds):
    workers.run(losses, names, kinds, size=size)


def test_activation_checkpointing(workers):
    workers.run(losses, ("everything", "mixed"), ("uneven packed",), True, size=2)


def half_precision(group):
    """Under autocast: as near to the model in float32 as the whole model under autocast is."""
    whole = build("everything")
    split = sequence_parallel(copy.deepcopy(whole), group)
    batch = batch_of("uneven", whole, group.size)
    exact = whole(**batch).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        near = whole(**batch).loss
        found = split(**shard_batch(batch, group, causal=True)).loss
    found.backward()
    assert all(x.isfinite().all() for x in gradients(split).values())
    assert near != exact
    assert abs(found - exact) < 2 * abs(near - exact) + 1e-2


def test_autocast(workers):
    workers.run(half_precision, size=2)


def group_of_one(group):
    """The plain model, which takes the batch that shard_batch makes."""
    for name in ("causal", "pairs of classes"):
        whole = build(name)
        split = sequence_parallel(copy.deepcopy(whole), group)
        assert split.model.sequence_group is None
        batch = batch_of("left", whole, 3)
        found = split(**shard_batch(batch, group, causal=True)).loss
        assert abs(found - whole(**batch).loss) < 1e-5


def test_a_group_of_one(workers):
    workers.run(group_of_one, size=1)


def dropout(group):
    """Ranks that are seeded differently drop different numbers; the same seeds make the same loss again."""
    model = build("causal")
    model.model.dropout.p = 0.5
    split = sequence_parallel(model, group)
    batch = shard_batch(batch_of("whole", model, group.size), group, causal=True)
    dropped, losses = [], []
    split.model.dropout.register_forward_hook(lambda *x: dropped.append(x[-1] == 0))
    for _ in range(2):
        torch.manual_seed(5 + group.rank)
        losses.append(split(**batch).loss)
    assert losses[0] == losses[1]
    every = gather_sequence(dropped[0].to(torch.uint8), group).unflatten(1, (group.size, -1))
    return bool((every[:, 0] == every[:, 1]).all())


def test_dropout(workers):
    assert workers.run(dropout, size=2) == [False, False]
