"""How sequences are cut into pieces, so that few long ones keep the whole GPU at work: a rule from the
number of rows and heads, the length and the number of multiprocessors, never from trials.

All functions give tokens a piece; `there`: how many blocks there are if nothing is cut. Lengths may be
symbolic: a compiled graph asks how many states will be kept.
"""

from functools import cache

import torch

CHUNK = 64
SHORTEST = 256  # tokens: below this a piece's state weighs as much as its rows
FEW = {64: 8, 128: 4}  # by width: states of a row that pieces sum up themselves, each those before it
SUMS = {64: 3, 128: 1}  # by width: blocks a multiprocessor that sum up the states of a walk's pieces
APPLIED = {64: 512, 128: 2048}  # by width: tokens a block applies a state to, where there are enough


@cache
def multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


def width_of(d: int, dv: int) -> int:
    return 64 if max(d, dv) <= 64 else 128


def at_work(device: torch.device, width: int) -> int:
    """Blocks at a time: two a multiprocessor, or one of wide heads."""
    return multiprocessors(device) * (2 if width == 64 else 1)


def to_walk(there: int, length: int, device: torch.device, width: int) -> int:
    """As many pieces as are at work at a time."""
    return _size(length, at_work(device, width) // there, SHORTEST)


def states_to_keep(rows: int, heads: int, length: int, device: torch.device, width: int) -> int:
    """How many pieces of a walk have states that its backward needs again; none where nothing is cut."""
    there = rows * heads
    if at_work(device, width) < 2 * there or length < 2 * SHORTEST:
        return 0
    return rows * -(-length // to_walk(there, length, device, width))


def of_list(length: int, most: int) -> int:
    """Pieces of a list of tiles, of which so many can be at work: it is often cut for nothing, where a
    document ends."""
    return max(1, min(most, length // SHORTEST))


def of_full_list(length: int, documents: int) -> int:
    """Rows of the list: as many tiles as there can be, and two that pieces need."""
    return length // CHUNK + documents + 2


def to_sum(there: int, length: int, device: torch.device, width: int) -> int:
    """As many as twice those at work, and not one more: the last would run alone after all others."""
    blocks = at_work(device, width)
    return _size(length, 1 if there >= 0.95 * blocks else 2 * blocks // there, SHORTEST)


def is_small(there: int, length: int, device: torch.device, width: int) -> bool:
    """Rows so few and short that to start a kernel takes longer than to sum up their states, of quarters,
    wherever these are applied."""
    return 8 * there <= at_work(device, width) and 2 * SHORTEST <= length <= 8 * SHORTEST


def to_quarter(there: int, length: int, device: torch.device, width: int) -> int:
    return _size(length, 4, SHORTEST)


def to_apply(there: int, length: int, device: torch.device, width: int) -> int:
    least = -(-2 * at_work(device, width) // there)
    return _size(length, max(least, -(-length // APPLIED[width])), CHUNK)


def _size(length: int, count: int, shortest: int) -> int:
    count = torch.sym_max(1, torch.sym_min(count, length // shortest))
    return -(-length // (count * CHUNK)) * CHUNK
