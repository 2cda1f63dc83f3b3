"""Attention of heads with a window: which kernels make up a forward and a backward.

Narrow windows are bands (band.py), wide ones go through states of chunks (wide.py). All heads of a kind are
one launch, and for bands one that mends, whatever their windows: these are data. A plan that has kernels of
its own (`narrow_parts`, `wide_heads`) divides them further. Heads without a window are not touched.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from cosformer.ops.gpu.blocks import INTERPRETED, dot_precision, has_large_smem, power_of_two
from cosformer.ops.gpu.launch_cache import cached_call
from cosformer.ops.gpu.launch_plan import BandHeads, LaunchPlan, WideHeads
from cosformer.ops.gpu.padding import with_aligned_rows
from cosformer.ops.gpu.partition import sm_count
from cosformer.ops.gpu.roles import ROLES
from cosformer.ops.gpu.windows import configs
from cosformer.ops.gpu.windows.band_keys import band_keys
from cosformer.ops.gpu.windows.band_queries import band_queries
from cosformer.ops.gpu.windows.rows import document_bounds, window_bwd_preprocess
from cosformer.ops.gpu.windows.wide import wide

WIDEST_BAND = 256  # tokens: wider windows, multiples of WIDE_STEP, go through states of chunks
WIDE_STEP = 64
BISECTED = 256  # tokens a program of document_bounds takes
MENDED = 128  # tiles of a band that a program looks after
# Rows of heads from which on the GPU is busy for longer than it takes to start a second stream.
ROWS_ASIDE = 2**18
WIDE_CTAS = 2  # of the kernel for wide windows that an SM holds


@dataclass(frozen=True)
class WindowTable:
    """The windows of a call's key-value heads, 0 for a head without one. `narrow` and `wide` hold, for the
    heads of their kind, sorted by their windows, [head, W, first place in the state], int32 on the device;
    None where there are none."""

    windows: tuple[int, ...]
    narrow: Tensor | None
    wide: Tensor | None


@cache
def window_table(windows: tuple[int, ...], device: torch.device) -> WindowTable:
    """Made once: a call with the same windows finds the same tensors."""
    entries, place = [], 0
    for head, window in enumerate(windows):
        if window:
            entries.append((head, window, place))
            place += window - 1
    narrow = sorted((x for x in entries if x[1] <= WIDEST_BAND), key=lambda x: x[1])
    wide = sorted((x for x in entries if x[1] > WIDEST_BAND), key=lambda x: x[1])
    made = (torch.tensor(x, dtype=torch.int32, device=device) if x else None for x in (narrow, wide))
    return WindowTable(windows, *made)


def forward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, den: Tensor, table: WindowTable, key_mask: Tensor | None,
    cu_seqlens: Tensor | None, causal: bool, offset: int, eps: float,
) -> None:  # fmt: skip
    """Writes o into out [B, Tq, H, Dv] and d before eps into den [B, H, Tq], of heads with a window."""
    inputs = (q, k, v, out, den, key_mask, cu_seqlens, table.narrow, table.wide)
    cached_call(launch_forward, inputs, (table.windows, causal, offset, eps), replayable=True)


def launch_forward(
    plan: LaunchPlan, q: Tensor, k: Tensor, v: Tensor, out: Tensor, den: Tensor, key_mask: Tensor | None,
    cu_seqlens: Tensor | None, narrow: Tensor | None, wide: Tensor | None, windows: tuple[int, ...],
    causal: bool, offset: int, eps: float,
) -> tuple[()]:  # fmt: skip
    tensors = {"q": q, "k": k, "v": v, "out": out}
    run = _Windowed(plan, tensors, den, key_mask, cu_seqlens, windows, causal, offset, eps)
    run.queries("o", narrow)
    run.wide_forward(wide)
    return ()


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, den: Tensor, dq: Tensor, dk: Tensor,
    dv: Tensor, table: WindowTable, key_mask: Tensor | None, cu_seqlens: Tensor | None, causal: bool,
    offset: int, eps: float,
) -> None:  # fmt: skip
    """Writes dq, dk and dv, shaped as q, k and v, of heads with a window."""
    inputs = (grad, q, k, v, out, den, dq, dk, dv, key_mask, cu_seqlens, table.narrow, table.wide)
    cached_call(launch_backward, inputs, (table.windows, causal, offset, eps), replayable=True)


def launch_backward(
    plan: LaunchPlan, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, den: Tensor, dq: Tensor,
    dk: Tensor, dv: Tensor, key_mask: Tensor | None, cu_seqlens: Tensor | None, narrow: Tensor | None,
    wide: Tensor | None, windows: tuple[int, ...], causal: bool, offset: int, eps: float,
) -> tuple[()]:  # fmt: skip
    tensors = {"g": grad, "q": q, "k": k, "v": v, "out": out, "dq": dq, "dk": dk, "dv": dv}
    run = _Windowed(plan, tensors, den, key_mask, cu_seqlens, windows, causal, offset, eps)
    run.queries("dq", narrow)
    run.keys(narrow)
    run.wide_backward(wide)
    return ()


def is_long(q: Tensor) -> bool:
    """Whether kinds of heads are worth computing beside each other."""
    return q.shape[0] * q.shape[1] * q.shape[2] >= ROWS_ASIDE


class _Windowed:
    """The kernels of one call as methods: their tensors, strides and block sizes put in place."""

    def __init__(
        self, plan: LaunchPlan, tensors: dict[str, Tensor], den: Tensor, key_mask: Tensor | None,
        cu_seqlens: Tensor | None, windows: tuple[int, ...], causal: bool, offset: int, eps: float,
    ):  # fmt: skip
        self.plan, self.den, self.windows = plan, den, windows
        written = ("dq", "dk", "dv") if "g" in tensors else ("out",)
        self.tensors = {n: x if n in written else with_aligned_rows(x) for n, x in tensors.items()}
        q, k, v = (tensors[n] for n in "qkv")
        self.batch, self.tq, heads, _ = q.shape
        self.tk, self.group = k.shape[1], heads // k.shape[2]
        self.dims = k.shape[3], v.shape[3]
        self.offset, self.eps = offset, eps
        self.mask = None if key_mask is None else key_mask.contiguous().view(torch.uint8)
        self.bounds = None if cu_seqlens is None else self._bounds(cu_seqlens)
        self.inv_den, self.delta = den, den
        if "g" in tensors:
            self.inv_den, self.delta = plan.empty(tuple(den.shape)), plan.empty(tuple(den.shape))
        self.dot_precision, self.large_smem = dot_precision(q.dtype, INTERPRETED), has_large_smem(q.device)
        self.common: dict[str, Any] = {
            "GROUP": self.group, "D": self.dims[0], "DV": self.dims[1], "CAUSAL": causal,
            "IS_VARLEN": cu_seqlens is not None, "HAS_MASK": key_mask is not None,
            "DOT": self.dot_precision.dtype, "PRECISION": self.dot_precision.precision,
        }  # fmt: skip

    def _bounds(self, cu: Tensor) -> Tensor:
        """[2, T]: where the document of each token begins and ends."""
        bounds = self.plan.empty((2, self.tq), torch.int32)
        documents = cu.shape[0] - 1
        if self.tq:
            self.plan.launch(
                document_bounds, -(-self.tq // BISECTED), cu, bounds, documents, self.tq,
                documents.bit_length(), ROWS=BISECTED, num_warps=4,
            )  # fmt: skip
        return bounds

    def queries(self, what: str, table: Tensor | None) -> None:
        """ "o" or "dq" of narrow heads."""
        if table is None or self.batch * self.tq == 0:
            return
        role = ROLES[what]
        a, b, x, y = (self.tensors[n] for n in (role.a, role.b, role.c, role.y))
        gate, out = (self.tensors["q"], self.tensors["out"]) if what == "dq" else (None, None)
        options = configs.band(what, self.dot_precision.bytes, max(self.dims)).options(*self.dims)
        for part, own in self._narrow_parts(table):
            if own is not None:
                with self.plan.aside(own.aside):
                    own.queries(what, self.den, self.inv_den, self.delta, self.eps)
                continue
            heads = part.shape[0]
            self._band(
                band_queries, heads * self.group * -(-self.tq // options["BT"]) * self.batch,
                a, b, x, y, gate, out, self.den, self.inv_den, self.delta, self.mask, self.bounds, part,
                heads, self.tq, self.tk, self.offset, self.eps, *_strides(a, b, x, y, gate, out),
                *self._vectors(), OUTPUT=what, **options, **self.common,
            )  # fmt: skip

    def keys(self, table: Tensor | None) -> None:
        """ "dk" and "dv" of narrow heads."""
        if table is None or self.batch * self.tk == 0:
            return
        tensors = [self.tensors[n] for n in ("k", "v", "q", "g", "dk", "dv")]
        options = configs.band("keys", self.dot_precision.bytes, max(self.dims)).options(*self.dims)
        # A backend's own kernels for keys take one query head for each; those of a group are portable here,
        # with the inv_den and delta of whichever kernels have computed dq.
        for part, own in self._narrow_parts(table) if self.group == 1 else [(table, None)]:
            if own is not None:
                with self.plan.aside(own.aside):
                    own.keys(self.inv_den, self.delta)
                continue
            heads = part.shape[0]
            self._band(
                band_keys, heads * -(-self.tk // options["BT"]) * self.batch,
                *tensors, self.inv_den, self.delta, self.mask, self.bounds, part, heads, self.tk, self.tq,
                -self.offset, *_strides(*tensors), *self._vectors(), **options, **self.common,
            )  # fmt: skip

    def _narrow_parts(self, table: Tensor) -> Sequence[tuple[Tensor, BandHeads | None]]:
        """Narrow heads, by the kernels that the plan has for them."""
        if self.mask is not None or self.bounds is not None or self.offset != 0:
            return [(table, None)]
        windows = sorted(w for w in self.windows if 0 < w <= WIDEST_BAND)
        return self.plan.narrow_parts(self.tensors, table, windows, self.common["CAUSAL"])

    def _band(self, kernel: Any, tiles: int, *arguments: Any, **options: Any) -> None:
        """All tiles, and in a second launch those again that were not finite: together they would need more
        registers, and the rare case would slow down every other."""
        spoilt = self.plan.empty((tiles,), torch.int32)
        self.plan.launch(kernel, tiles, spoilt, tiles, *arguments, MEND=0, **options)
        self.plan.launch(kernel, -(-tiles // MENDED), spoilt, tiles, *arguments, MEND=MENDED, **options)

    def bwd_preprocess(self, table: Tensor | None) -> None:
        """inv_den and delta of wide heads; those of narrow ones come with dq."""
        if table is None or self.batch * self.tq == 0:
            return
        g, o = self.tensors["g"], self.tensors["out"]
        columns, heads = power_of_two(self.dims[1]), table.shape[0]
        rows = max(16, 2**12 // columns)
        self.plan.launch(
            window_bwd_preprocess, heads * self.group * -(-self.tq // rows) * self.batch,
            g, o, self.den, self.inv_den, self.delta, table, heads, self.tq, self.eps, *_strides(g, o),
            *self._vectors()[:2], GROUP=self.group, DV=self.dims[1], ROWS=rows, BV=columns, num_warps=4,
        )  # fmt: skip

    def wide_forward(self, table: Tensor | None) -> None:
        parts = self._wide_parts(table)
        with self.plan.aside(self._is_aside(parts)):
            for part, heads in parts:
                if heads is not None:
                    heads.forward(self.den, self.eps)
                else:
                    self.wide("o", part)

    def wide_backward(self, table: Tensor | None) -> None:
        parts = self._wide_parts(table)
        with self.plan.aside(self._is_aside(parts)):
            self.bwd_preprocess(table)
            for part, heads in parts:
                if heads is not None:
                    heads.backward(self.inv_den, self.delta)
                else:
                    for what in ("dq", "dk", "dv"):
                        self.wide(what, part)

    def _is_aside(self, parts: list[tuple[Tensor | None, WideHeads | None]]) -> bool:
        """Whether wide heads are computed beside narrow ones: in long calls, by a plan's own kernels."""
        narrow = any(0 < w <= WIDEST_BAND for w in self.windows)
        return narrow and parts[0][1] is not None and is_long(self.tensors["q"])

    def _wide_parts(self, table: Tensor | None) -> list[tuple[Tensor | None, WideHeads | None]]:
        """Wide heads, a window at a time where the plan has kernels of its own for them."""
        if table is None or self.mask is not None or self.bounds is not None or self.offset != 0:
            return [(table, None)]
        sizes = sorted(w for w in self.windows if w > WIDEST_BAND)
        parts: list[tuple[Tensor | None, WideHeads | None]] = []
        for window in sorted(set(sizes)):
            first = sizes.index(window)
            part = table[first : first + sizes.count(window)]
            heads = self.plan.wide_heads(self.tensors, part, window, self.common["CAUSAL"])
            if heads is None:
                return [(table, None)]
            parts.append((part, heads))
        return parts

    def wide(self, what: str, table: Tensor | None) -> None:
        on_q = what in ("o", "dq")
        length, others = (self.tq, self.tk) if on_q else (self.tk, self.tq)
        if table is None or self.batch * length == 0:
            return
        role = ROLES[what]
        a, b, x, y = (self.tensors[n] for n in (role.a, role.b, role.c, role.y))
        gate = None if role.x is None else self.tensors[role.x]
        features, columns = self.dims if what in ("o", "dv") else self.dims[::-1]
        config = configs.wide(self.dot_precision.bytes, features, self.large_smem)
        options = {
            "CHUNK": config.bt, "BF": power_of_two(features), "BN": min(config.bv, power_of_two(columns)),
            "PARTS": min(config.bt, 4 * config.warps), "num_warps": config.warps,
            "num_stages": config.stages,
        }  # fmt: skip
        heads = table.shape[0]
        programs = heads * (self.group if on_q else 1) * -(-columns // options["BN"]) * self.batch
        segment = self._segment(length, programs)
        partial = self.plan.empty((programs // -(-columns // options["BN"]), length, columns))
        total = self.plan.empty((programs, length)) if what == "o" else None
        self.plan.launch(
            wide, programs * -(-length // segment),
            a, b, x, y, gate, self.den, self.inv_den, self.delta, partial, total, self.mask, self.bounds,
            table, heads, length, others, self.offset if on_q else -self.offset, segment, self.eps,
            *_strides(a, b, x, y, gate), *self._vectors(), OUTPUT=what, **options, **self.common,
        )  # fmt: skip

    def _segment(self, length: int, programs: int) -> int:
        """Own rows a program of the wide heads takes, of which `programs` work on the same: as long as the
        smallest wide window allows, or shorter to fill the GPU, but no shorter than a quarter of that, where
        most of the work would be to sum up what lies before the segment."""
        longest = min(w for w in self.windows if w > WIDEST_BAND)
        wanted = WIDE_CTAS * sm_count(self.tensors["q"].device)
        n = min(wanted // max(1, programs), 4 * length // longest)
        size = -(-length // max(1, n))
        return max(WIDE_STEP, min(longest, -(-size // WIDE_STEP) * WIDE_STEP))

    def _vectors(self) -> tuple[int, int, int]:
        """Strides of what has one number a row, and of the mask."""
        return self.den.stride(0), self.den.stride(1), 0 if self.mask is None else self.mask.stride(0)


def _strides(*tensors: Tensor | None) -> list[int]:
    return [n for x in tensors for n in ((0, 0, 0) if x is None else x.stride()[:3])]
