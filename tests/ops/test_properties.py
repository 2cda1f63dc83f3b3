"""Random calls against the paper's equation. A failing case replays and shrinks: everything is drawn
from hypothesis, tensors included (through their seed)."""

import itertools
from dataclasses import replace

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cosformer import cosformer_attention

from .cases import Case, distance, state_of
from .cases import carried as carried_tensors

lengths = st.one_of(st.integers(1, 12), st.sampled_from([31, 63, 64, 65, 129, 200]))
window = st.one_of(st.none(), st.integers(1, 12), st.sampled_from([31, 63, 64, 65, 128, 200, 256, 320, 512]))
settings.register_profile(
    "here",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("here")


def strided(draw, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of this shape in one of several memory layouts."""
    x = torch.randn(*shape, dtype=torch.float64).to(dtype)
    layout = draw(st.sampled_from(["plain", "heads first", "gaps", "sliced", "one row for all"]))
    if layout == "heads first":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "gaps":
        return torch.stack([x, torch.full_like(x, torch.nan)], -1)[..., 0]
    if layout == "sliced":
        padded = torch.full((shape[0], shape[1] + 3, *shape[2:]), torch.nan, dtype=dtype)
        padded[:, 2:-1] = x
        return padded[:, 2:-1]
    return x[:1].expand_as(x) if layout == "one row for all" else x


@st.composite
def cases(draw, dtype: torch.dtype, windowed: bool = False) -> Case:
    torch.manual_seed(draw(st.integers(0, 2**31)))
    causal = draw(st.booleans())
    kind = draw(st.sampled_from(["self", "cross", "packed"]))
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    dim, value_dim = draw(st.integers(1, 24)), draw(st.integers(1, 24))
    batch = 1 if kind == "packed" else draw(st.integers(1, 3))
    tq = draw(lengths)
    tk = draw(lengths) if kind == "cross" else tq
    carried = draw(st.booleans())
    options = {"causal": causal}
    offset = 0
    if kind == "cross" and (draw(st.booleans()) or (causal and carried)):
        first = -1 if causal and carried else -tq - 5
        options["query_offset"] = offset = draw(st.integers(first, tk + 5))
    elif causal:
        offset = tk - tq
    rows = batch
    if kind == "packed":
        cuts = sorted(draw(st.lists(st.integers(0, tq), max_size=6)))
        options["cu_seqlens"] = torch.tensor(
            [0, *cuts, tq], dtype=draw(st.sampled_from([torch.int32, torch.int64]))
        )
        rows = len(cuts) + 1
    elif draw(st.booleans()):
        options["key_mask"] = torch.rand(batch, tk) < draw(st.sampled_from([0.0, 0.2, 0.7, 1.0]))
    seen = torch.randint(0, 30, (rows,)) if carried else torch.zeros(rows, dtype=torch.int64)
    furthest = max(int(seen.max()) + offset + tq - 1, tk - 1 - offset, 1)
    options["horizon"] = float(furthest + draw(st.sampled_from([0.5, 1, 100])))
    windows = None
    if windowed:
        windows = options["windows"] = tuple(draw(st.lists(window, min_size=kv_heads, max_size=kv_heads)))
        if carried and any(windows):  # earlier queries would see keys that the state no longer holds
            offset = options["query_offset"] = max(offset, 0)
            if kind == "packed":
                del options["query_offset"]
            furthest = max(int(seen.max()) + offset + tq - 1, tk - 1 - offset, 1)
            options["horizon"] = float(furthest + 7)
    tensors = {
        "q": strided(draw, batch, tq, kv_heads * group, dim, dtype=dtype),
        "k": strided(draw, batch, tk, kv_heads, dim, dtype=dtype),
        "v": strided(draw, batch, tk, kv_heads, value_dim, dtype=dtype),
    }
    if carried:
        tensors |= carried_tensors(rows, kv_heads, dim, value_dim, dtype, windows)
        options["state"] = state_of(tensors, seen, options["horizon"], windows)
    if carried or draw(st.booleans()):
        options["return_state"] = True
    return Case(tensors, options)


@settings(max_examples=1000)
@given(cases(torch.float64))
def test_values_and_gradients(case):
    ours, paper = case.results("chunked"), case.results("reference")
    for name, expected in paper.items():
        assert distance(ours[name], expected) <= 1e-10, name


@settings(max_examples=1900)
@given(cases(torch.float64, windowed=True))
def test_values_and_gradients_with_windows(case):
    ours, paper = case.results("chunked"), case.results("reference")
    for name, expected in paper.items():
        assert distance(ours[name], expected) <= 1e-10, name


@settings(max_examples=300)
@given(st.data(), st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
def test_lower_precision(data, dtype):
    """No drawn case makes the chunked operator much worse than plain arithmetic in its own type."""
    case = data.draw(cases(dtype))
    case.options["horizon"] *= 2  # beyond half of it a cosine is a small difference of products
    if "state" in case.options:
        s = case.options["state"]
        case.options["state"] = replace(s, horizon=case.options["horizon"])
    exact = case.to(torch.float64).results("reference")
    ours, plain = case.results("chunked"), case.results("reference")
    unit, largest = torch.finfo(dtype).eps, torch.finfo(dtype).max
    for name, truth in exact.items():
        if truth.abs().max() > largest / 100:
            continue  # a drawn state can bring a denominator near zero: out of this type's range
        assert ours[name].isfinite().all() or not plain[name].isfinite().all(), name
        if not name.startswith("d"):
            allowed = 2 * distance(plain[name], truth) + 4 * unit
            assert distance(ours[name], truth) <= allowed, name


@settings(max_examples=400)
@given(st.data())
def test_any_cut_is_the_whole(data):
    """Causal: cut anywhere, as often as you like, carry the state."""
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    length = data.draw(lengths)
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, length), max_size=5))), length]
    q, k, v = (torch.randn(2, length, 2, 8, dtype=torch.float64) for _ in range(3))
    mask = torch.rand(2, length) < 0.8
    windows = data.draw(st.one_of(st.none(), st.tuples(window, window)))
    options = {"causal": True, "horizon": float(length), "windows": windows}
    whole, end = cosformer_attention(q, k, v, key_mask=mask, return_state=True, **options)
    state, parts = None, []
    for a, b in itertools.pairwise(cuts):
        if a == b:
            continue
        o, state = cosformer_attention(
            q[:, a:b], k[:, a:b], v[:, a:b], key_mask=mask[:, a:b], state=state, return_state=True, **options
        )
        parts.append(o)
    assert distance(torch.cat(parts, 1), whole) <= 1e-10
    assert distance(state.numerator, end.numerator) <= 1e-10
    assert torch.equal(state.positions, end.positions)
    for name in ("keys", "values"):
        mine, expected = getattr(state, name), getattr(end, name)
        assert (mine is None and expected is None) or torch.equal(mine, expected)
