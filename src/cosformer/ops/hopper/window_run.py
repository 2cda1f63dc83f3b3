"""Heads with one wide window on Hopper: which kernels make up a forward and a backward (window_tiles.py).

Segments divide the window, and start from states of the segments before them, or behind them. Where a row has
no tile that leaves the window, a CTA does without: these segments are a launch of their own.
"""

import math
from typing import Any

import torch
from torch import Tensor

from cosformer.ops.gpu.partition import sm_count
from cosformer.ops.hopper.launch_plan import HopperLaunchPlan, tma_can_read, tma_descriptor
from cosformer.ops.hopper.window_bwd_dkv import window_bwd_dkv
from cosformer.ops.hopper.window_bwd_dq import window_bwd_dq
from cosformer.ops.hopper.window_fwd import window_fwd
from cosformer.ops.hopper.window_state import window_state

CHUNK, WIDTH, WARPS = 64, 64, 4
STAGES = {"window_state": 3, "window_fwd": 2, "window_bwd_dq": 2}
MIN_SEGMENT = 256  # tokens; shorter ones spend their time on the states they start from


def segment_size(window: int, length: int, rows: int, sms: int) -> int:
    """Tokens: a window, or a part of it where there would be too few CTAs. `rows`: of all heads."""
    chunks = window // CHUNK
    sizes = [window // n for n in range(1, chunks + 1) if chunks % n == 0 and window // n >= MIN_SEGMENT]
    for size in sizes:
        if rows * -(-length // size) >= sms:
            return size
    return sizes[-1]


class WideHeads:
    """The heads of `table` [n, 3], which all have this window; other heads of the tensors are not touched."""

    def __init__(
        self, plan: HopperLaunchPlan, tensors: dict[str, Tensor], table: Tensor, window: int, causal: bool,
        segment: int | None = None,
    ):  # fmt: skip
        self.plan, self.tensors, self.table, self.window, self.causal = plan, tensors, table, window, causal
        q, k, v = tensors["q"], tensors["k"], tensors["v"]
        self.rows, self.length, self.group = q.shape[0], q.shape[1], q.shape[2] // k.shape[2]
        self.key_heads = table.shape[0]
        self.dims = k.shape[3], v.shape[3]
        self.segment = segment or segment_size(
            window, self.length, self.rows * self.key_heads * self.group, sm_count(q.device)
        )
        self.segments = -(-self.length // self.segment)
        self.angle_step = math.pi / 2 / window

    def forward(self, den: Tensor, eps: float) -> None:
        states = self._states("o", den, den)
        for first, count, leaves in self._parts(reverse=False):
            h0 = self._initial(states, leaves)
            self._launch(
                window_fwd, self.group, first, count, self._tma("q", "k", "v", "out"), (den, h0),
                (self.angle_step, eps, *den.stride()[:2]),
                (self.group, *self.dims, WIDTH, self.causal, leaves, h0 is not None),
            )  # fmt: skip

    def backward(self, inv_den: Tensor, delta: Tensor) -> None:
        """inv_den and delta [B, H, T] have been computed."""
        states = self._states("o", inv_den, delta)
        rest = (self.angle_step, *inv_den.stride()[:2])
        for first, count, leaves in self._parts(reverse=False):
            h0 = self._initial(states, leaves)
            self._launch(
                window_bwd_dq, self.group, first, count, self._tma("q", "k", "v", "g", "dq"),
                (inv_den, delta, h0), rest,
                (self.group, *self.dims, WIDTH, self.causal, leaves, h0 is not None),
            )  # fmt: skip
        states = self._states("dv", inv_den, delta)
        for first, count, leaves in self._parts(reverse=True):
            h0 = self._initial(states, leaves)
            self._launch(
                window_bwd_dkv, 1, first, count, self._tma("q", "k", "v", "g", "dk", "dv"),
                (inv_den, delta, h0), rest,
                (*self.dims, WIDTH, self.causal, leaves, h0 is not None, 1 if leaves else 2),
            )  # fmt: skip

    def _parts(self, *, reverse: bool) -> list[tuple[int, int, bool]]:
        """(first segment, how many of a row, whether a tile leaves the window)."""
        n, of_window = self.segments, self.window // self.segment
        if not self.causal:
            return [(0, n, self.length > self.window)]
        without = min(n, of_window)
        if reverse:
            without = n - max(0, -(-(self.length - self.window) // self.segment))
            parts = [(0, n - without, True), (n - without, without, False)]
        else:
            parts = [(0, without, False), (without, n - without, True)]
        return [x for x in parts if x[1] > 0]

    def _initial(self, states: Tensor | None, leaves: bool) -> Tensor | None:
        """The states that segments start from, if they do."""
        return states if leaves or not self.causal or self.segment < self.window else None

    def _states(self, output: str, inv_den: Tensor, delta: Tensor) -> Tensor | None:
        """Of the segments that others start from."""
        n = self.segments - 1 if self.causal else self.segments
        if n == 0:
            return None
        group = 1 if output == "o" else self.group
        d, dv = self.dims
        states = self.plan.empty((self.rows, self.segments, self.key_heads * group, 2 * d * (dv + 1)))
        first = 1 if self.causal and output == "dv" else 0
        self._launch(
            window_state, group, first, n, self._tma(*("kv" if output == "o" else "qg")),
            (inv_den, delta, states), (self.angle_step, *inv_den.stride()[:2]),
            (group, *self.dims, WIDTH, output),
        )  # fmt: skip
        return states

    def _launch(
        self, kernel: Any, group: int, first: int, count: int, descriptors: list[Any],
        pointers: tuple[Any, ...], rest: tuple[Any, ...], constants: tuple[Any, ...],
    ) -> None:  # fmt: skip
        heads = self.key_heads * group
        stages = (STAGES[kernel.__name__],) if kernel.__name__ in STAGES else ()
        self.plan.launch_tma(
            kernel, heads * self.rows * count,
            (
                *descriptors, *pointers, self.table, heads, self.length, first, count, self.segments,
                self.segment, self.window, *rest,
            ),
            (*constants, *stages, WARPS),
        )  # fmt: skip

    def _tma(self, *names: str) -> list[Any]:
        return [tma_descriptor(self.tensors[n], CHUNK, WIDTH) for n in names]


def wide_heads(
    plan: HopperLaunchPlan, tensors: dict[str, Tensor], table: Tensor, window: int, causal: bool
) -> WideHeads | None:
    """None where these kernels do not compute the call: the portable ones do (gpu/windows/wide.py)."""
    q, k, v = tensors["q"], tensors["k"], tensors["v"]
    served = (
        q.dtype == torch.bfloat16 and q.shape[1] == k.shape[1] and q.numel() > 0
        and max(k.shape[3], v.shape[3]) <= WIDTH and k.shape[3] % 8 == 0 and v.shape[3] % 8 == 0
        and ("g" not in tensors or q.shape[2] == k.shape[2])
        and all(tma_can_read(x) for x in tensors.values())
    )  # fmt: skip
    return WideHeads(plan, tensors, table, window, causal) if served else None
