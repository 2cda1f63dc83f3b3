"""How long splits are for the portable kernels, and how many states a forward saves."""

import torch

from cosformer.ops.gpu import partition
from cosformer.ops.gpu.partition import sm_count

# Resident CTAs per SM. A row is split into at most as many splits as run at a time: one more would run alone
# after all others.
CHUNK_CTAS = 2  # of the chunk kernels, which fill the register file
STATE_CTAS = 3  # of chunk_state
APPLY_CTAS = 8  # of state_apply


def split_size(rows: int, length: int, ctas_per_split: int, ctas_per_sm: int, device: torch.device) -> int:
    """Tokens a split, when each of them occupies `ctas_per_split` CTAs."""
    n = torch.sym_min(
        ctas_per_sm * sm_count(device) // torch.sym_max(1, rows * ctas_per_split),
        length // partition.MIN_SPLIT_TOKENS,
    )
    return -(-length // n // 64) * 64 if n > 1 else torch.sym_max(1, length)


def states_to_keep(rows: int, length: int, heads: int, device: torch.device) -> int:
    """How many initial states of splits a causal forward saves for its backward; none where no row is split.
    Sizes may be symbolic: a compiled graph asks before there are any."""
    if 2 * rows * heads > CHUNK_CTAS * sm_count(device) or length < 2 * partition.MIN_SPLIT_TOKENS:
        return 0
    return rows * -(-length // split_size(rows, length, heads, CHUNK_CTAS, device))
