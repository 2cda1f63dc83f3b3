"""One token a row with windows: how the heads are handed to the kernel (mixed_step.py), in one launch."""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from cosformer.ops.gpu.blocks import power_of_two
from cosformer.ops.gpu.launch_cache import cached_call
from cosformer.ops.gpu.launch_plan import LaunchPlan
from cosformer.ops.gpu.padding import with_aligned_rows
from cosformer.ops.gpu.partition import sm_count
from cosformer.ops.gpu.windows.mixed_step import ENTRIES, mixed_step
from cosformer.ops.windows import fits_step

SMALL = 16  # places that a window of up to as many is read in
SMALLS = 4  # heads with such windows that a program takes, where heads have up to 64 features
NUMBERS = 2**12  # of keys, and of values, that a program reads at a time; half of it where they spill
LONG = 256  # windows beyond it are read by four warps, however many programs there are


class StepBlocks(NamedTuple):
    """Warps of a program, and registers of a thread (None: as the compiler likes)."""

    warps: int
    registers: int | None


FEW, MANY = StepBlocks(4, 128), StepBlocks(2, None)


class StepEntries(NamedTuple):
    """Key heads, packed: those without a window, with more than SMALL places, and the rest, each from the
    longest window on."""

    packed: tuple[int, ...]
    table: Tensor  # the same
    plain: int
    longs: int
    smalls: int


@cache
def step_entries(windows: tuple[int, ...], device: torch.device) -> StepEntries:
    assert fits_step(windows)
    entries, place = [], 0
    for head, window in enumerate(windows):
        entries.append((window, head, place))
        place += max(window, 1) - 1
    entries.sort(key=lambda x: (x[0] > 0, -x[0]))
    # Bit 62: an int64, whatever else it holds.
    packed = tuple(1 << 62 | at << 36 | window << 12 | head for window, head, at in entries)
    plain, longs = windows.count(0), sum(w > SMALL for w in windows)
    table = torch.tensor(packed, dtype=torch.int64, device=device)
    return StepEntries(packed, table, plain, longs, len(windows) - plain - longs)


def step(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, keys: Tensor, values: Tensor, numerator: Tensor,
    denominator: Tensor, positions: Tensor, windows: tuple[int, ...], key_mask: Tensor | None, horizon: float,
    eps: float, advance: bool,
) -> None:  # fmt: skip
    """q [B, 1, H, D]: writes o into out [B, 1, H, Dv]. In place, the new key and value take the place of the
    oldest in keys [B, R, D] and values [B, R, Dv], heads without a window add to numerator [B, n, 2, D, Dv]
    and denominator [B, n, 2, D], and positions `advance`. `key_mask` [B, 1]: a masked token is a key of
    zeros."""
    entries = step_entries(windows, q.device)
    sums = (numerator, denominator) if entries.plain else (None, None)
    inputs = (q, k, v, out, keys, values, *sums, positions, key_mask, entries.table)
    cached_call(_step, inputs, (windows, horizon, eps, advance), replayable=True)


def _step(
    plan: LaunchPlan, q: Tensor, k: Tensor, v: Tensor, out: Tensor, keys: Tensor, values: Tensor,
    s: Tensor | None, z: Tensor | None, positions: Tensor, key_mask: Tensor | None, table: Tensor,
    windows: tuple[int, ...], horizon: float, eps: float, advance: bool,
) -> tuple[()]:  # fmt: skip
    batch, _, heads, d = q.shape
    dv, group = v.shape[3], heads // k.shape[2]
    if batch == 0:
        return ()
    packed, _, plain, longs, smalls = step_entries(windows, table.device)
    q, k, v = with_aligned_rows(q), with_aligned_rows(k), with_aligned_rows(v)
    mask = None if key_mask is None else key_mask.contiguous().view(torch.uint8)
    wide_d, wide_v = power_of_two(d), power_of_two(dv)
    widest = max(wide_d, wide_v)
    few = batch * (plain + longs + -(-smalls // SMALLS)) <= 2 * sm_count(q.device)
    blocks = FEW if few or max(windows) > LONG else MANY
    together = min(max(1, SMALLS * 64 // max(64, widest)), 1 << max(0, smalls - 1).bit_length())
    spills = group > 1 or v.element_size() > 2
    rows = max(SMALL, (NUMBERS // 2 if spills else NUMBERS) // widest)
    # Rows that all threads read at once, 16 bytes each: those above one another are of one thread.
    parts = max(1, min(rows, 32 * blocks.warps * (16 // v.element_size()) // wide_v))
    in_args = len(packed) <= ENTRIES
    numbers = (packed if in_args else ()) + (1 << 62,) * ENTRIES
    units = plain + longs + -(-smalls // together)
    registers = {} if blocks.registers is None else {"maxnreg": blocks.registers}
    plan.launch(
        mixed_step, units * batch,
        q, k, v, out, keys, values, s, z, positions, mask, table, *numbers[:ENTRIES], batch, plain, longs,
        smalls, horizon, eps, q.stride(0), q.stride(2), k.stride(0), k.stride(2), v.stride(0), v.stride(2),
        out.stride(0), out.stride(2), keys.stride(0), values.stride(0), 2 * d * dv, 2 * d,
        0 if mask is None else mask.stride(0),
        GROUP=group, GROUPS=1 << (group - 1).bit_length(), D=d, DV=dv, MASKED=mask is not None,
        IN_ARGS=in_args, ADVANCE=advance, HAS_PLAIN=plain > 0, BR=rows, SMALL=SMALL, SMALLS=together,
        BD=wide_d, BV=wide_v, BC=min(wide_v, 2**12 // wide_d), PARTS=parts,
        num_warps=blocks.warps, **registers,
    )  # fmt: skip
    return ()
