"""Every misuse is refused with a sentence that names the argument, what was expected and what came."""

import re
from dataclasses import replace

import pytest
import torch

from cosformer import CosformerAttention, CosformerState, cosformer_attention

B, T, H, HK, D, DV = 2, 6, 4, 2, 8, 5
INF, NAN = float("inf"), float("nan")


def x(*shape, dtype=torch.float32, device=None):
    return torch.ones(shape, dtype=dtype, device=device)


def ints(*values):
    return torch.tensor(values)


def state(batch=B, heads=HK, dim=D, value_dim=DV, horizon=16, seen=0, dtype=torch.float32):
    zeros = CosformerState.zeros(batch, heads, dim, value_dim, horizon=horizon)
    sums = {"numerator": zeros.numerator.to(dtype), "denominator": zeros.denominator.to(dtype)}
    return replace(zeros, positions=zeros.positions + seen, seen=seen, **sums)


def misuse(name, error, argument, expected, came, **arguments):
    return pytest.param(error, argument, expected, came, arguments, id=name.replace(" ", "-"))


PACKED = {"q": x(1, T, H, D), "k": x(1, T, HK, D), "v": x(1, T, HK, DV)}
SHAPES = [
    misuse("q not a tensor", TypeError, "q", "tensor [B, Tq, H, D]", "list", q=[[1.0]]),
    misuse("k not a tensor", TypeError, "k", "tensor [B, Tk, Hk, D]", "NoneType", k=None),
    misuse("v not a tensor", TypeError, "v", "tensor [B, Tk, Hk, Dv]", "float", v=1.0),
    misuse("q of rank 3", ValueError, "q", "[B, Tq, H, D]", "[2, 6, 8]", q=x(B, T, D)),
    misuse("k of rank 5", ValueError, "k", "[B, Tk, Hk, D]", "[2, 6, 2, 8, 1]", k=x(B, T, HK, D, 1)),
    misuse("v of rank 2", ValueError, "v", "[B, Tk, Hk, Dv]", "[6, 5]", v=x(T, DV)),
    misuse("batch of k", ValueError, "k", "batch size 2", "[3, 6, 2, 8]", k=x(3, T, HK, D)),
    misuse("batch of v", ValueError, "v", "batch size 2", "[1, 6, 2, 5]", v=x(1, T, HK, DV)),
    misuse("length of v", ValueError, "v", "length 6", "[2, 7, 2, 5]", v=x(B, 7, HK, DV)),
    misuse("heads of v", ValueError, "v", "2 heads", "[2, 6, 4, 5]", v=x(B, T, 4, DV)),
    misuse("heads of q no multiple", ValueError, "q", "multiple of k's 2 heads", "5", q=x(B, T, 5, D)),
    misuse("head size of k", ValueError, "k", "head size 8", "[2, 6, 2, 9]", k=x(B, T, HK, 9)),
    misuse("no batch", ValueError, "q", "batch of at least 1", "[0, 6, 4, 8]",
           q=x(0, T, H, D), k=x(0, T, HK, D), v=x(0, T, HK, DV)),
    misuse("no query heads", ValueError, "q", "heads of at least 1", "[2, 6, 0, 8]", q=x(B, T, 0, D)),
    misuse("no key heads", ValueError, "k", "heads of at least 1", "[2, 6, 0, 8]",
           k=x(B, T, 0, D), v=x(B, T, 0, DV)),
    misuse("no head size", ValueError, "q", "head size of at least 1", "[2, 6, 4, 0]",
           q=x(B, T, H, 0), k=x(B, T, HK, 0)),
    misuse("no value size", ValueError, "v", "head size of at least 1", "[2, 6, 2, 0]", v=x(B, T, HK, 0)),
    misuse("no queries", ValueError, "q", "length of at least 1", "[2, 0, 4, 8]", q=x(B, 0, H, D)),
    misuse("no keys and no state", ValueError, "k", "length of at least 1", "[2, 0, 2, 8]",
           k=x(B, 0, HK, D), v=x(B, 0, HK, DV)),
]  # fmt: skip
TYPES = [
    misuse("integer q", TypeError, "q", "float32", "torch.int64", q=x(B, T, H, D, dtype=torch.int64)),
    misuse("boolean v", TypeError, "v", "float32", "torch.bool", v=x(B, T, HK, DV, dtype=torch.bool)),
    misuse("complex k", TypeError, "k", "float32", "complex64", k=x(B, T, HK, D, dtype=torch.complex64)),
    misuse("k of another dtype", TypeError, "k", "q's dtype torch.float32", "torch.float16",
           k=x(B, T, HK, D, dtype=torch.float16)),
    misuse("v of another dtype", TypeError, "v", "q's dtype torch.float32", "torch.float64",
           v=x(B, T, HK, DV, dtype=torch.float64)),
    misuse("q on another device", ValueError, "k", "device meta", "cpu", q=x(B, T, H, D, device="meta")),
    misuse("k on another device", ValueError, "k", "device cpu", "meta", k=x(B, T, HK, D, device="meta")),
    misuse("v on another device", ValueError, "v", "device cpu", "meta", v=x(B, T, HK, DV, device="meta")),
    misuse("causal a string", TypeError, "causal", "True or False", "'yes'", causal="yes"),
    misuse("causal a number", TypeError, "causal", "True or False", "1", causal=1),
    misuse("return_state None", TypeError, "return_state", "True or False", "None", return_state=None),
    misuse("unknown backend", ValueError, "backend", "auto, hopper, triton", "'cuda'", backend="cuda"),
    misuse("backend None", ValueError, "backend", "triton, chunked, reference", "None", backend=None),
    misuse("query_offset a float", TypeError, "query_offset", "int", "float", query_offset=1.0),
    misuse("query_offset a bool", TypeError, "query_offset", "int", "bool", query_offset=True),
]  # fmt: skip
MASKS = [
    misuse("mask of another shape", ValueError, "key_mask", "[B, Tk] = [2, 6]", "[2, 7]",
           key_mask=x(B, 7, dtype=torch.bool)),
    misuse("mask of rank 4", ValueError, "key_mask", "[B, Tk] = [2, 6]", "[2, 1, 1, 6]",
           key_mask=x(B, 1, 1, T, dtype=torch.bool)),
    misuse("mask of integers", TypeError, "key_mask", "bool", "torch.int64", key_mask=x(B, T).long()),
    misuse("mask of floats", TypeError, "key_mask", "bool", "torch.float32", key_mask=x(B, T)),
    misuse("mask a list", TypeError, "key_mask", "bool tensor [B, Tk]", "list", key_mask=[[True] * T] * B),
    misuse("mask on another device", ValueError, "key_mask", "device cpu", "meta",
           key_mask=x(B, T, dtype=torch.bool, device="meta")),
]  # fmt: skip
NUMBERS = [
    misuse(f"{name} {value}", error, name, expected, came, **{name: value})
    for name in ("horizon", "eps")
    for value, error, expected, came in [
        (0, ValueError, "positive finite number", "0"),
        (-3.5, ValueError, "positive finite number", "-3.5"),
        (NAN, ValueError, "positive finite number", "nan"),
        (INF, ValueError, "positive finite number", "inf"),
        ("8", TypeError, "number", "str"),
        (True, TypeError, "number", "bool"),
    ]
]
HORIZONS = [
    misuse("horizon too small", ValueError, "horizon", "at least 5", "horizon 4.5", horizon=4.5),
    misuse("horizon too small causal", ValueError, "horizon", "at least 5", "horizon 4",
           horizon=4, causal=True),
    misuse("horizon too small for keys ahead", ValueError, "horizon", "at least 5", "horizon 4",
           horizon=4, q=x(B, 1, H, D)),
    misuse("horizon too small for a late query", ValueError, "horizon", "at least 25", "horizon 16",
           horizon=16, causal=True, query_offset=20),
    misuse("horizon too small for an early query", ValueError, "horizon", "at least 25", "horizon 16",
           horizon=16, query_offset=-20),
    misuse("horizon too small with a state", ValueError, "horizon", "at least 17", "horizon 16",
           horizon=16, causal=True, state=state(seen=12)),
    misuse("horizon too small for a document", ValueError, "horizon", "at least 4", "horizon 3",
           **PACKED, cu_seqlens=ints(0, 1, 6), horizon=3),
    misuse("horizon too small for several documents", ValueError, "horizon", "at least 3", "horizon 0.5",
           **PACKED, cu_seqlens=ints(0, 2, 6), horizon=0.5),
    misuse("horizon too small for a later document", ValueError, "horizon", "at least 17", "horizon 16",
           **PACKED, cu_seqlens=ints(0, 1, 6), horizon=16, causal=True, state=state(seen=13)),
    misuse("horizon missing with a state", ValueError, "horizon", "must be given", "state", state=state()),
    misuse("horizon missing with return_state", ValueError, "horizon", "must be given", "return_state",
           return_state=True),
    misuse("causal query before a state", ValueError, "query_offset", "at least -1", "-30",
           horizon=16, causal=True, state=state(seen=10), query_offset=-30),
]  # fmt: skip
STATES = [
    misuse("state of another type", TypeError, "state", "CosformerState", "tuple", state=(), horizon=16),
    misuse("state of another batch", ValueError, "state", "2 rows", "3", state=state(batch=3), horizon=16),
    misuse("state of other heads", ValueError, "state", "[2, 2, 2, 8, 5]", "[2, 4, 2, 8, 5]",
           state=state(heads=4), horizon=16),
    misuse("state of another head size", ValueError, "state", "[2, 2, 2, 8, 5]", "[2, 2, 2, 9, 5]",
           state=state(dim=9), horizon=16),
    misuse("state of another value size", ValueError, "state", "[2, 2, 2, 8, 5]", "[2, 2, 2, 8, 6]",
           state=state(value_dim=6), horizon=16),
    misuse("state of another horizon", ValueError, "state", "horizon 16", "horizon 32",
           state=state(), horizon=32),
    misuse("state of another dtype", TypeError, "state", "torch.float32", "torch.float64",
           state=state(dtype=torch.float64), horizon=16),
    misuse("state in half precision", TypeError, "state", "torch.float32", "torch.bfloat16",
           state=state(dtype=torch.bfloat16), horizon=16),
    misuse("state on another device", ValueError, "state", "device cpu", "meta",
           state=state().to("meta"), horizon=16),
    misuse("state rows not documents", ValueError, "state", "3 documents", "2",
           **PACKED, cu_seqlens=ints(0, 1, 2, 6), state=state(), horizon=16),
]  # fmt: skip
PACKING = [
    misuse("bounds a list", TypeError, "cu_seqlens", "integer tensor [N + 1]", "list",
           **PACKED, cu_seqlens=[0, 6]),
    misuse("bounds of floats", TypeError, "cu_seqlens", "int32 or int64", "torch.float32",
           **PACKED, cu_seqlens=ints(0, 6).float()),
    misuse("bounds of rank 2", ValueError, "cu_seqlens", "one-dimensional", "[1, 2]",
           **PACKED, cu_seqlens=ints(0, 6)[None]),
    misuse("one bound", ValueError, "cu_seqlens", "at least 2 entries", "[1]", **PACKED, cu_seqlens=ints(0)),
    misuse("bounds not from 0", ValueError, "cu_seqlens", "start at 0", "1", **PACKED, cu_seqlens=ints(1, 6)),
    misuse("bounds not to the end", ValueError, "cu_seqlens", "length of the row, 6", "ends at 5",
           **PACKED, cu_seqlens=ints(0, 3, 5)),
    misuse("bounds past the end", ValueError, "cu_seqlens", "length of the row, 6", "ends at 7",
           **PACKED, cu_seqlens=ints(0, 7)),
    misuse("bounds that fall", ValueError, "cu_seqlens", "never fall", "from 4 to 2",
           **PACKED, cu_seqlens=ints(0, 4, 2, 6)),
    misuse("bounds on another device", ValueError, "cu_seqlens", "device cpu", "meta",
           **PACKED, cu_seqlens=ints(0, 6).to("meta")),
    misuse("packed batch", ValueError, "cu_seqlens", "batch of 1", "2", cu_seqlens=ints(0, 6)),
    misuse("packed and masked", ValueError, "cu_seqlens", "leave padding out", "key_mask",
           **PACKED, cu_seqlens=ints(0, 6), key_mask=x(1, T, dtype=torch.bool)),
    misuse("packed lengths differ", ValueError, "cu_seqlens", "same length", "Tq = 3 and Tk = 6",
           **PACKED | {"q": x(1, 3, H, D)}, cu_seqlens=ints(0, 6)),
    misuse("packed and offset", ValueError, "query_offset", "left out with cu_seqlens", "2",
           **PACKED, cu_seqlens=ints(0, 6), query_offset=2),
]  # fmt: skip


def refuses(error, argument, expected, came, call):
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert type(caught.value) is error
    assert re.search(rf"\b{argument}\b", message), f"the argument, {argument}, is not named: {message}"
    assert expected in message, f"what was expected is not said: {message}"
    assert came in message, f"what came is not said: {message}"


@pytest.mark.parametrize(
    ("error", "argument", "expected", "came", "arguments"),
    SHAPES + TYPES + MASKS + NUMBERS + HORIZONS + STATES + PACKING,
)
def test_operator_refuses(error, argument, expected, came, arguments):
    given = {"q": x(B, T, H, D), "k": x(B, T, HK, D), "v": x(B, T, HK, DV)} | arguments
    refuses(error, argument, expected, came, lambda: cosformer_attention(**given))


def test_what_the_misuses_start_from_is_accepted():
    """Otherwise each of them might be refused for a reason of its own."""
    q, k, v = x(B, T, H, D), x(B, T, HK, D), x(B, T, HK, DV)
    mask = x(B, T, dtype=torch.bool)
    assert cosformer_attention(q, k, v, key_mask=mask, horizon=5).shape == (B, T, H, DV)
    assert cosformer_attention(q, k, v, causal=True, state=state(seen=11), horizon=16).shape == (B, T, H, DV)
    packed = cosformer_attention(**PACKED, cu_seqlens=ints(0, 1, 6), state=state(seen=12), horizon=16)
    assert packed.shape == (1, T, H, DV)


MODULE = [
    misuse("width 0", ValueError, "embed_dim", "positive int", "0", embed_dim=0),
    misuse("width a float", ValueError, "embed_dim", "positive int", "16.0", embed_dim=16.0),
    misuse("width no multiple", ValueError, "embed_dim", "multiple of num_heads 4", "18", embed_dim=18),
    misuse("no heads", ValueError, "num_heads", "positive int", "0", num_heads=0),
    misuse("heads a bool", ValueError, "num_heads", "positive int", "True", num_heads=True),
    misuse("no key heads", ValueError, "num_kv_heads", "positive int", "-2", num_kv_heads=-2),
    misuse(
        "key heads no divisor", ValueError, "num_heads", "multiple of num_kv_heads 3", "4", num_kv_heads=3
    ),
    misuse("key width 0", ValueError, "kdim", "positive int", "0", kdim=0),
    misuse("value width negative", ValueError, "vdim", "positive int", "-3", vdim=-3),
]


@pytest.mark.parametrize(("error", "argument", "expected", "came", "arguments"), MODULE)
def test_module_refuses_to_be_built(error, argument, expected, came, arguments):
    refuses(
        error, argument, expected, came,
        lambda: CosformerAttention(**{"embed_dim": 16, "num_heads": 4} | arguments),
    )  # fmt: skip


FORWARD = [
    misuse("query not a tensor", TypeError, "query", "tensor", "list", query=[[1.0]]),
    misuse("query of rank 2", ValueError, "query", "[B, T, 16]", "[6, 16]", query=x(T, 16)),
    misuse("query of another width", ValueError, "query", "[B, T, 16]", "[2, 6, 12]", query=x(B, T, 12)),
    misuse("key of another width", ValueError, "key", "[B, T, 12]", "[2, 6, 16]", key=x(B, T, 16)),
    misuse("value of another width", ValueError, "value", "[B, T, 10]", "[2, 6, 12]",
           key=x(B, T, 12), value=x(B, T, 12)),
    misuse("value without key", ValueError, "value", "give both", "without key", value=x(B, T, 10)),
    misuse("value of another length", ValueError, "v", "length 6", "7", key=x(B, T, 12), value=x(B, 7, 10)),
    misuse("mask of another shape", ValueError, "key_mask", "[2, 6]", "[2, 5]",
           key=x(B, T, 12), value=x(B, T, 10), key_mask=x(B, 5, dtype=torch.bool)),
    misuse("state without horizon", ValueError, "horizon", "must be given", "return_state",
           key=x(B, T, 12), value=x(B, T, 10), return_state=True),
]  # fmt: skip


@pytest.mark.parametrize(("error", "argument", "expected", "came", "arguments"), FORWARD)
def test_module_refuses_to_run(error, argument, expected, came, arguments):
    module = CosformerAttention(16, 4, kdim=12, vdim=10)
    refuses(error, argument, expected, came, lambda: module(**{"query": x(B, T, 16)} | arguments))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64], ids=str)
def test_state_refuses_a_narrow_type(dtype):
    for call in (lambda: state().to(dtype), lambda: state().to("cpu", dtype=dtype)):
        refuses(ValueError, "CosformerState", "float32 or float64", str(dtype), call)
