"""How sequences are split over CTAs, so that few long ones occupy the whole GPU.

A split is a contiguous range of tokens of one row that one CTA works through. How long splits are is each
backend's own rule (its partition.py).
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

MIN_SPLIT_TOKENS = 256  # in a shorter split, reading and writing its state costs as much as its rows
_SMS_WITHOUT_GPU = 132  # an H100's, where there is no GPU to ask


@dataclass(frozen=True)
class Splits:
    """`size` tokens a split, `per_row` splits a row, `count` in total, `slots` of them with a state.

    With packed documents (`cu_seqlens` [N+2], the last bound twice), int32 tables on the device say
    `split_doc` [count], `doc_first_split` [N+1] of each document, and `split_slot` [count]: which slot holds
    the split's state, -1 for none. They are computed from cu_seqlens on the device, without synchronisation,
    so `count` is an upper bound: splits beyond the last one have no rows.
    """

    size: int
    per_row: int
    count: int
    slots: int
    cu_seqlens: Tensor | None = None
    split_doc: Tensor | None = None
    doc_first_split: Tensor | None = None
    split_slot: Tensor | None = None

    @property
    def tables(self) -> tuple[Tensor | None, ...]:
        """In the order of the kernels' arguments."""
        return self.cu_seqlens, self.split_doc, self.doc_first_split, self.split_slot

    @property
    def one_per_row(self) -> bool:
        return self.cu_seqlens is None and self.per_row == 1

    def subdivided(self, factor: int) -> "Splits":
        """The same tokens in `factor` times as many splits."""
        if factor == 1:
            return self
        return Splits(self.size // factor, self.per_row * factor, self.count * factor, self.slots * factor)


def split_rows(rows: int, length: int, size: int) -> Splits:
    """`rows` rows of `length` tokens in splits of `size` tokens."""
    per_row = max(1, -(-length // size))
    return Splits(size, per_row, rows * per_row, rows * per_row)


def split_documents(cu_seqlens: Tensor, length: int, size: int, every_state: bool) -> Splits:
    """Documents packed into one row, each in splits of `size` tokens. `every_state`: each split has a state,
    not only those of documents of several splits. All tables are int32 whatever the type of `cu_seqlens`,
    because some kernels are compiled for one type only."""
    documents = cu_seqlens.shape[0] - 1
    count = length // size + documents
    n = (cu_seqlens.diff() + (size - 1)) // size
    first = torch.cat((n.new_zeros(1), n.cumsum(0)))
    split = torch.arange(count, device=n.device)
    document = torch.searchsorted(first[1:], split, right=True)
    has_state = document < documents
    if not every_state:
        has_state = has_state & (n[document.clamp_max(documents - 1)] > 1)
    slot = torch.where(has_state, split if every_state else has_state.cumsum(0) - 1, -1)
    return Splits(
        size, 0, count, count if every_state else min(count, 2 * length // size + 1),
        torch.cat((cu_seqlens, cu_seqlens[-1:])).int(), document.int(), first.int(), slot.int(),
    )  # fmt: skip


def state_subdivision(splits: Splits, heads: int, max_ctas: int) -> int:
    """Into how many smaller splits each split is divided while states are summed, so that up to `max_ctas`
    CTAs do so. The state of a row's last split is not needed, so that split is not counted."""
    factor, needed = 1, splits.count - splits.count // max(1, splits.per_row)
    while (
        splits.cu_seqlens is None and 2 * factor * needed * heads <= max_ctas
        and splits.size % (2 * factor * 64) == 0 and splits.size // (2 * factor) >= MIN_SPLIT_TOKENS
    ):  # fmt: skip
        factor *= 2
    return factor


@cache
def sm_count(device: torch.device) -> int:
    """Streaming multiprocessors of the GPU."""
    if device.type != "cuda":
        return _SMS_WITHOUT_GPU
    return torch.cuda.get_device_properties(device).multi_processor_count
