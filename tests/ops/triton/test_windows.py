"""The kernels of heads with a window against the equation, with all pairs written out in float64: on a GPU
where there is one, else in Triton's interpreter. Rows are compared one by one."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="the package triton is not installed (there are none for this platform)")

from cosformer.ops.triton import windowed

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPS = 1e-6
UNTOUCHED = 12345.0
NARROW = (1, 2, 3, 8, 63, 64, 65, 200, 256)


@dataclass(frozen=True)
class Call:
    """Windows of the key heads (0: none), each of `group` query heads; lengths of documents, if packed."""

    windows: tuple[int, ...]
    tq: int = 150
    tk: int | None = None
    batch: int = 1
    group: int = 1
    d: int = 16
    dv: int = 16
    causal: bool = True
    offset: int = 0
    masked: bool = False
    documents: tuple[int, ...] | None = None
    dtype: torch.dtype = torch.float32

    @property
    def keys(self):
        return self.tq if self.tk is None else self.tk

    def tensors(self):
        heads = len(self.windows)
        shapes = {
            "q": (self.batch, self.tq, heads * self.group, self.d), "k": (self.batch, self.keys, heads, self.d),
            "v": (self.batch, self.keys, heads, self.dv),
            "g": (self.batch, self.tq, heads * self.group, self.dv),
        }  # fmt: skip
        return {n: torch.randn(s).to(self.dtype).to(DEVICE) for n, s in shapes.items()}

    def mask(self):
        if not self.masked:
            return None
        mask = torch.rand(self.batch, self.keys) < 0.7
        mask[:, 5:30] = False
        return mask.to(DEVICE)

    def cu(self):
        if self.documents is None:
            return None
        return torch.tensor((0, *self.documents)).cumsum(0).to(torch.int32).to(DEVICE)

    def weights(self, mask):
        """[B, Hk, Tq, Tk]: c(i - j) of pairs that see each other, NaN for others."""
        i, j = torch.arange(self.tq)[:, None] + self.offset, torch.arange(self.keys)[None, :]
        every = []
        for window in self.windows:
            seen = (i - j).abs() < window
            if self.causal:
                seen &= j <= i
            if self.documents is not None:
                of = torch.repeat_interleave(torch.arange(len(self.documents)), torch.tensor(self.documents))
                seen &= of[:, None] == of[None, :]
            w = torch.cos((i - j).double() * (torch.pi / 2 / max(window, 1)))
            every.append(w.masked_fill(~seen, torch.nan))
        w = torch.stack(every)[None].expand(self.batch, -1, -1, -1)
        return w if mask is None else w.masked_fill(~mask.cpu()[:, None, None, :], torch.nan)

    def exact(self, x, mask):
        """o, d and the gradients in float64, with all pairs written out; and each beside the same sum of
        absolute values, the scale of its roundings."""
        w = self.weights(mask).repeat_interleave(self.group, 1)
        seen = ~w.isnan()
        leaves = {n: t.detach().cpu().double().requires_grad_() for n, t in x.items() if n != "g"}
        q, k, v = leaves["q"].relu(), leaves["k"].relu(), leaves["v"]
        k, v = (t.repeat_interleave(self.group, 2) for t in (k, v))
        w = w.nan_to_num()
        p = (torch.einsum("bihd,bjhd->bhij", q, k) * w).masked_fill(~seen, 0)
        den = p.sum(-1)
        over = den.clamp_min(EPS)[..., None]
        out = torch.einsum("bhij,bjhe->bihe", p / over, v)
        g = x["g"].cpu().double()
        grads = torch.autograd.grad(out, list(leaves.values()), g)
        exact = {"out": out, "den": den[..., None]} | dict(zip(("dq", "dk", "dv"), grads, strict=True))
        pairs = torch.einsum("bihe,bjhe->bhij", g.abs(), v.abs())
        pairs = w * (pairs + (g * out).sum(-1).mT.abs()[..., None]) / over
        shape = (len(self.windows), self.group)
        scales = {
            "out": torch.einsum("bhij,bjhe->bihe", p / over, v.abs()), "den": den[..., None],
            "dq": torch.einsum("bhij,bjhd->bihd", pairs, k),
            "dk": torch.einsum("bhij,bihd->bjhd", pairs, q).unflatten(2, shape).sum(3),
            "dv": torch.einsum("bhij,bihe->bjhe", p / over, g.abs()).unflatten(2, shape).sum(3),
        }  # fmt: skip
        return {n: (t.detach(), scales[n].detach()) for n, t in exact.items()}

    def run(self, x, mask):
        """What the kernels give, laid over UNTOUCHED."""
        table = windowed.window_table(self.windows, x["q"].device)
        q, k, v, g = (x[n] for n in "qkvg")
        out = torch.full((*q.shape[:3], self.dv), UNTOUCHED, dtype=q.dtype, device=DEVICE)
        den = torch.full((q.shape[0], q.shape[2], q.shape[1]), UNTOUCHED, device=DEVICE)
        dq, dk, dv = (torch.full_like(t, UNTOUCHED) for t in (q, k, v))
        settings = (table, mask, self.cu(), self.causal, self.offset, EPS)
        windowed.forward(q, k, v, out, den, *settings)
        windowed.backward(g, q, k, v, out, den, dq, dk, dv, *settings)
        made = {"out": out, "den": den, "dq": dq, "dk": dk, "dv": dv}
        return {n: t.cpu() for n, t in made.items()}


def rows_apart(found, exact, scale):
    """The largest error of a row, relative to its own scale."""
    error = (found.double() - exact).abs().amax(-1) / (scale.amax(-1) + 1e-9)
    return error.max() if error.numel() else 0


def assert_right(call, bound=1e-5):
    x, mask = call.tensors(), call.mask()
    found, exact = call.run(x, mask), call.exact(x, mask)
    found["den"] = found["den"][..., None]
    for name, made in found.items():
        group = 1 if name in ("dk", "dv") else call.group
        axis = 1 if name == "den" else 2
        for head, window in enumerate(call.windows):
            mine, truth, scale = (t.narrow(axis, head * group, group) for t in (made, *exact[name]))
            if window == 0:
                assert (mine == UNTOUCHED).all(), (name, head)
                continue
            assert mine.isfinite().all(), (name, window)
            assert rows_apart(mine, truth, scale) <= bound, (name, window)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("windows", [(1, 2, 0, 3), (8, 63), (0, 64, 65), (200,), (256, 0)], ids=str)
def test_narrow_windows(windows, causal):
    assert_right(Call(windows, causal=causal))


KINDS = {
    "grouped": {"group": 2, "batch": 2, "dv": 24},
    "mask": {"masked": True, "batch": 2},
    "documents": {"documents": (0, 1, 3, 0, 66, 40, 0, 39, 1, 0)},
    "mask+documents+grouped": {"masked": True, "documents": (70, 0, 80), "group": 3, "d": 24},
    "later keys": {"tq": 90, "tk": 150, "offset": 37},
    "later queries": {"tq": 150, "tk": 70, "offset": -20, "masked": True},
    "queries alone": {"tq": 40, "tk": 0},
    "keys alone": {"tq": 0, "tk": 40},
    "far apart": {"tq": 70, "tk": 70, "offset": 300},
}


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_call_with_narrow_windows(kind, causal):
    assert_right(Call((3, 0, 64, 70), causal=causal, **KINDS[kind]))


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("windows", [(320,), (0, 512, 8, 320)], ids=str)
def test_wide_windows(windows, causal):
    """In several segments, the first of which no window fills."""
    assert_right(Call(windows, tq=450, causal=causal))


WIDE = {n: KINDS[n] for n in ("grouped", "mask", "queries alone", "keys alone", "far apart")} | {
    "mask+documents+grouped": {"masked": True, "documents": (70, 0, 80), "group": 3, "d": 24},
    "documents": {"tq": 560, "documents": (0, 1, 380, 0, 65, 40, 74, 0)},
    "later keys": {"tq": 390, "tk": 450, "offset": 37},
    "later queries": {"tq": 450, "tk": 380, "offset": -20, "masked": True},
}


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("kind", WIDE)
def test_every_kind_of_call_with_wide_windows(kind, causal):
    assert_right(Call((320, 0, 2), causal=causal, **WIDE[kind]))


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_segments_as_long_as_the_window(causal, monkeypatch):
    monkeypatch.setattr(windowed, "multiprocessors", lambda device: 1)
    assert_right(Call((320,), tq=400, causal=causal))


@pytest.mark.parametrize("dims", [(64, 64), (17, 40), (128, 128)], ids=str)
def test_head_sizes(dims):
    assert_right(Call((5, 320), tq=100, d=dims[0], dv=dims[1]))


def test_half_precision():
    call = Call((5, 70), tq=100, d=32, dv=32, dtype=torch.float16)
    assert_right(call, bound=2e-3)


def test_strided_inputs():
    call = Call((5, 320), d=16, dv=16, batch=2)
    x = call.tensors()
    found = call.run(x, None)
    apart = {n: t.transpose(1, 2).contiguous().transpose(1, 2) for n, t in x.items()}
    apart["q"], apart["k"], apart["v"] = torch.cat([x[n] for n in "qkv"], -1).chunk(3, -1)
    for name, made in call.run(apart, None).items():
        assert torch.equal(made, found[name]), name


def test_repeated_calls_agree_to_the_bit():
    call = Call((1, 30, 320), group=2)
    x = call.tensors()
    first, second = call.run(x, None), call.run(x, None)
    assert all(torch.equal(first[n], second[n]) for n in first)


def spoilt_rows(call, bad, value):
    """Results with `value` in rows `bad` of q, k, v and g, and the rows that see one of these, as queries and
    as keys; and clean results."""
    x = call.tensors()
    clean = call.run(x, None)
    for name, rows in bad.items():
        x[name][:, rows] = value
    w = call.weights(None)[0, 0]
    return clean, call.run(x, None), ~w.isnan()


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("documents", [None, (70, 30, 50)], ids=["one document", "documents"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_lies_beyond_a_narrow_window_cannot_move_a_bit(value, documents, causal):
    call = Call((5,), causal=causal, documents=documents)
    for name in "qkvg":
        clean, found, seen = spoilt_rows(call, {name: [68, 69, 100]}, value)
        queries = torch.zeros(150, dtype=torch.bool)
        keys = queries.clone()
        if name in "qg":
            queries[[68, 69, 100]] = True
        else:
            keys[[68, 69, 100]] = True
            queries |= (seen & keys[None, :]).any(1)
        keys |= (seen & queries[:, None]).any(0)
        if name != "g":
            assert torch.equal(found["out"][:, ~queries], clean["out"][:, ~queries]), name
            assert torch.equal(found["den"][..., ~queries], clean["den"][..., ~queries]), name
            bad = found["out"][0, :, 0].isfinite().logical_not().all(-1)
            assert torch.equal(bad, queries), name
        assert torch.equal(found["dq"][:, ~queries], clean["dq"][:, ~queries]), name
        for gradient in ("dk", "dv"):
            assert torch.equal(found[gradient][:, ~keys], clean[gradient][:, ~keys]), name
            assert not found[gradient][0, keys, 0].isfinite().all(-1).any() or name in "kv", name


@pytest.mark.parametrize("windows", [(5,), (320,)], ids=str)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_masked_nan_and_queries_without_a_gradient_have_no_influence(windows, causal):
    call = Call(windows, causal=causal, masked=True)
    x, mask = call.tensors(), call.mask()
    unused = torch.zeros(150, dtype=torch.bool)
    unused[60:75] = unused[3] = True
    x["g"][:, unused] = 0
    clean = call.run(x, mask)
    for name in "kv":
        x[name][~mask] = torch.nan
    assert all(torch.equal(clean[n], t) for n, t in call.run(x, mask).items())
    x["q"][:, unused] = torch.nan
    found = call.run(x, mask)
    for name in ("dq", "dk", "dv"):
        assert torch.equal(clean[name], found[name]), name
    assert (found["dq"][:, unused] == 0).all()
    assert (found["dk"][~mask] == 0).all()
    assert (found["dv"][~mask] == 0).all()


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_nan_beyond_a_wide_window_or_in_another_document(causal):
    """A window and a chunk further on; what comes from spoilt keys by way of queries that are used, once more
    as far."""
    call = Call((320,), tq=520, d=8, dv=8, causal=causal)
    clean, found, _ = spoilt_rows(call, {n: [60] for n in "kv"}, torch.nan)
    for name, axis in {"out": 1, "den": 2, "dq": 1}.items():
        assert torch.equal(*(t[name].narrow(axis, 444, 76) for t in (found, clean))), name
    clean, found, _ = spoilt_rows(call, {n: [60] for n in "qg"}, torch.nan)
    for name in ("dk", "dv"):
        assert torch.equal(found[name][:, 444:], clean[name][:, 444:]), name
    call = replace(call, tq=150, documents=(70, 80))
    clean, found, _ = spoilt_rows(call, {n: [69] for n in "qkvg"}, torch.nan)
    for name, axis in {"out": 1, "den": 2, "dq": 1, "dk": 1, "dv": 1}.items():
        assert torch.equal(*(t[name].narrow(axis, 70, 80) for t in (found, clean))), name


@pytest.mark.parametrize(("group", "dtype"), [(3, torch.float32), (1, torch.float16)], ids=str)
def test_token_by_token_as_all_at_once(group, dtype):
    """The state holds the last W - 1 keys and values of each head, bit for bit; the longest is three tiles."""
    call = Call((1, 2, 0, 40, 5), tq=50, batch=2, group=group, d=24, dv=200, masked=True, dtype=dtype)
    x, mask = call.tensors(), call.mask()
    table = windowed.window_table(call.windows, x["q"].device)
    keys, values = (torch.zeros(2, table.places, n, dtype=dtype, device=DEVICE) for n in (24, 200))
    x["k"][~mask], x["v"][~mask] = torch.nan, torch.nan
    exact, scale = call.exact({n: t.nan_to_num() for n, t in x.items()}, mask)["out"]
    for t in range(call.tq):
        out = torch.full((2, 1, x["q"].shape[2], 200), UNTOUCHED, dtype=dtype, device=DEVICE)
        token = [x[n][:, t : t + 1] for n in "qkv"]
        windowed.decode(*token, out, keys, values, table, mask[:, t : t + 1], EPS)
        for head, window in enumerate(call.windows):
            mine = slice(head * group, head * group + group)
            if window == 0:
                assert (out[:, :, mine] == UNTOUCHED).all()
            else:
                apart = rows_apart(out[:, 0, mine].cpu(), exact[:, t, mine], scale[:, t, mine])
                assert apart <= (1e-5 if dtype == torch.float32 else 2e-3)
    place = 0
    for head, window in enumerate(call.windows):
        for stored, name in ((keys, "k"), (values, "v")):
            real = x[name].masked_fill(~mask[..., None, None], 0)[:, call.tq - max(window, 1) + 1 :, head]
            assert torch.equal(stored[:, place : place + max(window, 1) - 1], real)
        place += max(window, 1) - 1
    assert place == table.places
