"""The operator over a group is the operator over the whole sequence: values, gradients, states."""

import random
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from cosformer.distributed import sequence_parallel_attention
from cosformer.ops import CosformerState, cosformer_attention

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
HORIZON = 512.0


def drawn(seed):
    """A case: every combination of what the operator takes may come."""
    r = random.Random(seed)
    heads = r.choice([1, 2, 3])
    windows = [r.choice([None, None, 1, 2, 5, 12]) for _ in range(heads)]
    kind = r.choice(["rows", "mask", "lengths", "packed", "packed"])
    return {
        "causal": r.random() < 0.5,
        "length": r.choice([1, 2, 3, 7, 16]),
        "batch": 1 if kind == "packed" else r.choice([1, 2, 3]),
        "heads": heads,
        "groups": r.choice([1, 2]),
        "windows": r.choice([None, windows, [r.choice([2, 4, 9]) for _ in range(heads)]]),
        "kind": kind,
        "state": r.random() < 0.4,
        "return_state": r.random() < 0.4,
        "dtype": r.choice([torch.float64, torch.float32]),
        "documents": r.choice([1, 2, 3, 8]),
        "seed": seed,
    }


def close(found, expected, dtype, what):
    scale = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
    error = (found - expected).abs().max().item() / scale if expected.numel() else 0.0
    assert not error > TOLERANCE[dtype], f"{what}: {error}"
    assert found.isfinite().all(), what


def parts_of(state):
    return [x for x in (state.numerator, state.denominator, state.keys, state.values) if x is not None]


def operator_case(group, case):
    """The whole sequence on every rank, beside its shards."""
    g = torch.Generator().manual_seed(case["seed"])
    dtype, batch, heads, length = case["dtype"], case["batch"], case["heads"], case["length"]
    total, dim, value_dim = length * group.size, 8, 9

    def draw(*shape):
        return torch.randn(shape, generator=g, dtype=torch.float64).to(dtype)

    q = draw(batch, total, heads * case["groups"], dim)
    k, v = draw(batch, total, heads, dim), draw(batch, total, heads, value_dim)
    own = slice(group.rank * length, (group.rank + 1) * length)
    how = {"causal": case["causal"], "windows": case["windows"], "horizon": HORIZON}
    local = dict(how)
    rows = batch
    if case["kind"] == "mask":
        how["key_mask"] = torch.rand(batch, total, generator=g) < 0.7
        local["key_mask"] = how["key_mask"][:, own]
        k[~how["key_mask"]] = torch.nan
    elif case["kind"] == "lengths":
        how["lengths"] = local["lengths"] = torch.randint(0, total + 1, (batch,), generator=g)
        v[torch.arange(total) >= how["lengths"][:, None]] = torch.nan
    elif case["kind"] == "packed":
        cuts = torch.randint(0, total + 1, (case["documents"] - 1,), generator=g).sort().values
        how["cu_seqlens"] = local["cu_seqlens"] = torch.tensor([0, *cuts.tolist(), total])
        rows = case["documents"]
    if case["state"]:
        state = CosformerState.zeros(
            rows, heads, dim, value_dim, horizon=HORIZON, windows=case["windows"], dtype=dtype
        )
        positions = torch.randint(0, 100, (rows,), generator=g)
        state = replace(
            state, positions=positions, seen=int(positions.max()),
            numerator=draw(*state.numerator.shape), denominator=draw(*state.denominator.shape).abs() + 3,
            keys=None if state.keys is None else draw(*state.keys.shape),
            values=None if state.values is None else draw(*state.values.shape),
        )  # fmt: skip
        how["state"], local["state"] = state, state.clone()
        for x in parts_of(how["state"]) + parts_of(local["state"]):
            x.requires_grad_()
    returned = case["return_state"]
    how["return_state"] = local["return_state"] = returned

    def run(attention, q, k, v, how, weight, times):
        out = attention(q, k, v, **how)
        out, after = out if returned else (out, None)
        loss = (out * weight).sum()
        if after is not None:
            loss = loss + times * sum((x * x.detach().cos()).sum() for x in parts_of(after))
        loss.backward()
        return out.detach(), after

    weight = draw(batch, total, heads * case["groups"], value_dim)
    whole = [x.clone().requires_grad_() for x in (q, k, v)]
    mine = [x[:, own].clone().requires_grad_() for x in (q, k, v)]
    ranks = sum(range(1, group.size + 1))
    out, after = run(cosformer_attention, *whole, how, weight, ranks)
    found, after_found = run(
        lambda *x, **y: sequence_parallel_attention(*x, group=group, **y),
        *mine, local, weight[:, own], group.rank + 1,
    )  # fmt: skip
    close(found, out[:, own], dtype, "out")
    for name, x, y in zip("qkv", mine, whole, strict=True):
        close(x.grad, y.grad[:, own], dtype, f"d{name}")
    if returned:
        assert torch.equal(after_found.positions, after.positions)
        assert after_found.seen == after.seen
        assert (after_found.windows, after_found.horizon) == (after.windows, after.horizon)
        for x, y in zip(parts_of(after_found), parts_of(after), strict=True):
            close(x.detach(), y.detach(), dtype, "state")
    if case["state"]:
        for x, y in zip(parts_of(local["state"]), parts_of(how["state"]), strict=True):
            grad = torch.zeros_like(x) if x.grad is None else x.grad
            dist.all_reduce(grad, group=group.group)
            close(grad, torch.zeros_like(y) if y.grad is None else y.grad, dtype, "dstate")


def several(group, seeds):
    for seed in seeds:
        case = drawn(seed)
        try:
            operator_case(group, case)
        except Exception as error:
            raise AssertionError(f"{case}") from error


@pytest.mark.parametrize("size", [2, 3, 4])
def test_drawn_cases(workers, size):
    workers.run(several, range(40 * size, 40 * size + 40), size=size)
