"""How long splits are on Hopper: rules from the number of rows and heads, the length and the number of SMs,
never from trial runs.

The *_split_size functions return tokens a split. `ctas`: how many CTAs there are if nothing is split. Lengths
may be symbolic: a compiled graph asks how many states will be saved.
"""

import math

import torch

from cosformer.ops.gpu import partition
from cosformer.ops.gpu.partition import sm_count

CHUNK = 64
# By width (64 or 128 features):
MAX_INLINE_STATES = {64: 8, 128: 4}  # of a row; so few are summed by the kernel that uses them
MAX_SUMMED_STATES = 32  # of a row of up to 16,384 tokens; then by the root of its length
STATE_CTAS = {64: 3, 128: 1}  # resident CTAs per SM of chunk_state
APPLY_TOKENS = {64: 512, 128: 2048}  # a split of state_apply, where there are enough of them


def head_width(d: int, dv: int) -> int:
    """Features a tile is padded to."""
    return 64 if max(d, dv) <= 64 else 128


def resident_ctas(device: torch.device, width: int) -> int:
    """Of a chunk kernel: two per SM, or one where tiles are 128 wide."""
    return sm_count(device) * (2 if width == 64 else 1)


def chunk_split_size(ctas: int, length: int, device: torch.device, width: int) -> int:
    """For the chunk kernels: as many CTAs as are resident at a time."""
    return _split_size(length, resident_ctas(device, width) // ctas, partition.MIN_SPLIT_TOKENS)


def states_to_keep(rows: int, heads: int, length: int, device: torch.device, width: int) -> int:
    """How many initial states of splits a causal forward saves for its backward; none where no row is
    split."""
    ctas = rows * heads
    if resident_ctas(device, width) < 2 * ctas or length < 2 * partition.MIN_SPLIT_TOKENS:
        return 0
    return rows * -(-length // chunk_split_size(ctas, length, device, width))


def tile_list_splits(length: int, max_splits: int) -> int:
    """Into how many splits a list of tiles is cut. A cut often falls between two documents, and costs
    nothing."""
    return max(1, min(max_splits, length // partition.MIN_SPLIT_TOKENS))


def tile_list_rows(length: int, documents: int) -> int:
    """As many tiles as there can be, and two more rows for the bounds of splits."""
    return length // CHUNK + documents + 2


def state_split_size(ctas: int, length: int, device: torch.device, width: int) -> int:
    """For chunk_state, of a length that is no symbol: at most twice the resident CTAs; one more would run
    alone after all others. Few heads of a long text get fewer: a row's states are summed one after the other,
    and that takes longer with each of them."""
    resident = resident_ctas(device, width)
    count = 1 if ctas >= 0.95 * resident else 2 * resident // ctas
    count = min(count, max(MAX_SUMMED_STATES, math.isqrt(length // 16)))
    return _split_size(length, count, partition.MIN_SPLIT_TOKENS)


def sums_states_inline(ctas: int, length: int, device: torch.device, width: int) -> bool:
    """Whether rows are so few and short that a launch costs more than summing the states of four splits in
    every CTA that applies them."""
    shortest = 2 * partition.MIN_SPLIT_TOKENS
    return 8 * ctas <= resident_ctas(device, width) and shortest <= length <= 4 * shortest


def inline_split_size(ctas: int, length: int, device: torch.device, width: int) -> int:
    """Four splits a row, for states that are summed inline."""
    return _split_size(length, 4, partition.MIN_SPLIT_TOKENS)


def apply_split_size(ctas: int, length: int, device: torch.device, width: int) -> int:
    """For state_apply: at least two CTAs for each resident one."""
    count = -(-2 * resident_ctas(device, width) // ctas)
    return _split_size(length, max(count, -(-length // APPLY_TOKENS[width])), CHUNK)


def _split_size(length: int, count: int, min_tokens: int) -> int:
    count = torch.sym_max(1, torch.sym_min(count, length // min_tokens))
    return -(-length // (count * CHUNK)) * CHUNK
