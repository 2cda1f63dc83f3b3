"""Calls of the kernels of heads with a window, and the same with all pairs written out in float64."""

from dataclasses import dataclass

import torch

from cosformer.ops.gpu.windows import launch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPS = 1e-6
UNTOUCHED = 12345.0


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
            "q": (self.batch, self.tq, heads * self.group, self.d),
            "k": (self.batch, self.keys, heads, self.d),
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
        table = launch.window_table(self.windows, x["q"].device)
        q, k, v, g = (x[n] for n in "qkvg")
        out = torch.full((*q.shape[:3], self.dv), UNTOUCHED, dtype=q.dtype, device=DEVICE)
        den = torch.full((q.shape[0], q.shape[2], q.shape[1]), UNTOUCHED, device=DEVICE)
        dq, dk, dv = (torch.full_like(t, UNTOUCHED) for t in (q, k, v))
        settings = (table, mask, self.cu(), self.causal, self.offset, EPS)
        launch.forward(q, k, v, out, den, *settings)
        launch.backward(g, q, k, v, out, den, dq, dk, dv, *settings)
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
