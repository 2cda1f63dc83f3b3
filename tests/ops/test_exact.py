"""The chunked operator equals the paper's equation: values and all gradients, in float64."""

from itertools import product

import pytest
import torch

from cosformer.ops.chunked.plan import LARGE_BUFFER, tiling

from .cases import KINDS, distance, make

LENGTHS = (1, 2, 63, 64, 65, 128, 1000)
SHAPES = {  # head size, value size, heads, key heads
    "8": (8, 8, 2, 2),
    "17": (17, 17, 1, 1),
    "48x80": (48, 80, 2, 1),
    "80x17": (80, 17, 2, 2),
    "96": (96, 96, 3, 1),
    "128x8": (128, 8, 1, 1),
    "128": (128, 128, 2, 2),
    "grouped": (16, 16, 6, 2),
}


def assert_equal_to_reference(case, tolerance=1e-10):
    ours, paper = case.results("chunked"), case.results("reference")
    for name, expected in paper.items():
        assert distance(ours[name], expected) <= tolerance, name


# The reference writes its state out token by token: long states are compared at one shape.
COMBINATIONS = [
    (length, shape, kind)
    for length, shape, kind in product(LENGTHS, SHAPES, KINDS)
    if not (length == 1000 and kind.endswith("state") and shape != "grouped")
]


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize(("length", "shape", "kind"), COMBINATIONS)
def test_self_attention(length, shape, kind, causal):
    dim, value_dim, heads, kv_heads = SHAPES[shape]
    assert_equal_to_reference(
        make(
            batch=1 if length == 1000 else 2, tq=length, dim=dim, value_dim=value_dim, heads=heads,
            kv_heads=kv_heads, causal=causal, **KINDS[kind],
        )
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["plain", "mask", "state", "mask+state"])
@pytest.mark.parametrize(
    ("tq", "tk", "offset"),
    [
        (1, 300, None), (300, 1, None), (65, 200, None), (200, 65, None), (200, 300, 0), (300, 200, 40),
        (200, 300, -170), (150, 300, 500), (300, 150, -400), (64, 64, 64), (130, 130, -1), (130, 130, 1),
        (2, 1000, 400),
    ],
)  # fmt: skip
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "cross"])
def test_queries_and_keys_of_other_lengths(tq, tk, offset, causal, kind):
    if causal and kind.endswith("state") and (tk - tq if offset is None else offset) < -1:
        offset = -1  # earlier queries would see a part of the state: refused (test_errors.py)
    assert_equal_to_reference(
        make(
            tq=tq, tk=tk, query_offset=offset, causal=causal, heads=4, kv_heads=2, dim=16, value_dim=24,
            horizon=3000, **KINDS[kind],
        )
    )  # fmt: skip


WINDOWS = {
    "narrow": (1, 2, 3, None),
    "around a chunk": (8, 63, 64, 65),
    "around a band": (200, 256, None, 320),
    "wide": (1024, None, 512, 1),
}
# At one shape that is hard, and of the long ones those that the reference computes in a second.
WITH_WINDOWS = [
    (length, kind) for length, kind in product((1, 2, 63, 65, 150, 1000), KINDS)
    if length < 1000 or kind in ("plain", "packed")
]  # fmt: skip


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize(("length", "kind"), WITH_WINDOWS)
def test_windows(length, kind, windows, causal):
    assert_equal_to_reference(
        make(
            batch=1 if length == 1000 else 2, tq=length, dim=8, value_dim=5, heads=8, kv_heads=4,
            windows=WINDOWS[windows], causal=causal, **KINDS[kind],
        )
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["plain", "mask+state"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_all_windows_at_once(causal, kind):
    windows = tuple(w for ws in WINDOWS.values() for w in ws)
    assert_equal_to_reference(make(tq=300, dim=16, heads=16, windows=windows, causal=causal, **KINDS[kind]))


@pytest.mark.parametrize("windows", [(1, 7, 64), (100, 320, None), (256, 1024, 2)], ids=str)
@pytest.mark.parametrize("kind", ["plain", "mask", "state"])
@pytest.mark.parametrize(
    ("tq", "tk", "offset"),
    [
        (1, 300, None), (300, 1, None), (65, 200, None), (200, 300, 0), (300, 200, 40), (200, 300, -170),
        (150, 300, 500), (300, 150, -400), (130, 130, -1), (2, 1000, 400), (70, 400, 1300),
    ],
)  # fmt: skip
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "cross"])
def test_windows_of_queries_and_keys_of_other_lengths(tq, tk, offset, causal, kind, windows):
    if kind == "state" and (tk - tq if offset is None and causal else offset or 0) < 0:
        offset = 0  # earlier queries would see keys that the state no longer holds: refused
    assert_equal_to_reference(
        make(
            tq=tq, tk=tk, query_offset=offset, causal=causal, heads=6, kv_heads=3, dim=8, value_dim=12,
            horizon=3000, windows=windows, **KINDS[kind],
        )
    )  # fmt: skip


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_tight_horizon(causal):
    """M = T - 1: the furthest weight is exactly zero."""
    assert_equal_to_reference(make(tq=300, horizon=299, causal=causal))


@pytest.mark.parametrize("length", [20, 300])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_where_eps_holds_the_denominator(causal, length):
    """An eps so large that it decides in about half of the rows: there d has no gradient."""
    case = make(tq=length, causal=causal, eps=(0.7 if causal else 1.4) * length, mask=True)
    assert_equal_to_reference(case)
    clamped = case.call("chunked") != case.call("chunked", eps=1e-6)
    assert 0.1 < clamped.double().mean() < 0.95


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("buffer", [2**13, pytest.param(LARGE_BUFFER, marks=pytest.mark.thorough)])
def test_several_tiles_of_the_batch(buffer, causal, monkeypatch):
    """A batch walked in tiles, several chunks to a step, equals the same batch walked at once."""
    monkeypatch.setattr("cosformer.ops.chunked.plan.BUFFER", buffer)
    shape = {"heads": 2, "dim": 16} if buffer < LARGE_BUFFER else {"heads": 16, "dim": 64}
    length = 300 if buffer < LARGE_BUFFER else 130
    at_once = tiling(length, shape["heads"], (shape["dim"],) * 2, torch.device("cpu"))[1]
    assert (at_once >= 5) == (buffer == LARGE_BUFFER)
    assert_equal_to_reference(make(batch=5, tq=length, causal=causal, mask=True, state=True, **shape))


@pytest.mark.parametrize("documents", [1, 7, 400])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_many_documents(documents, causal):
    assert_equal_to_reference(make(tq=1200, dim=8, heads=2, documents=documents, causal=causal))


def test_no_keys_but_a_state():
    """Cross-attention to keys that were turned into a state once: no keys are left in the call."""
    case = make(tq=70, tk=0, state=True, causal=False, horizon=500, query_offset=-30)
    assert_equal_to_reference(case)


@pytest.mark.parametrize("windows", [None, (3, None), (1, 66), (320, None)], ids=str)
@pytest.mark.parametrize("kind", ["plain", "mask", "packed", "state", "packed+state"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("length", [5, 70])
def test_gradcheck(length, causal, kind, windows):
    case = make(
        batch=1, tq=length, heads=4, kv_heads=2, dim=3, value_dim=2, causal=causal, windows=windows,
        **KINDS[kind],
    )  # fmt: skip
    names = list(case.tensors)

    def f(*leaves):
        made = type(case)(dict(zip(names, leaves, strict=True)), case.options).call("chunked")
        if isinstance(made, torch.Tensor):
            return made
        of_state = (getattr(made[1], n) for n in ("numerator", "denominator", "keys", "values"))
        return (made[0], *(x for x in of_state if x is not None and x.numel()))

    leaves = [x.requires_grad_(x.numel() > 0) for x in case.tensors.values()]
    assert torch.autograd.gradcheck(
        f, leaves, fast_mode=length > 5 or (windows is not None and kind.endswith("state"))
    )
