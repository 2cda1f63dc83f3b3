"""BigBird (Zaheer et al., 2020, arXiv:2007.14062, section 2 and appendix D, the internal construction):

o_i = sum_{j in S_i} softmax_j(q_i . k_j / sqrt(D)) v_j

in blocks of b tokens: a query sees the keys of w blocks around and including its own, of g global blocks,
and of r blocks drawn at random among the others; queries of global blocks see every key. Half of the global
blocks are the first ones, half the last ones, as in the authors' code.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cosformer.attention.checks import count, for_heads, within_length
from cosformer.attention.gather import Lists, Relation
from cosformer.attention.pattern import PatternAttention
from cosformer.attention.registry import register
from cosformer.attention.relations import Blocks, Ends
from cosformer.attention.traits import Traits
from cosformer.ops.checks import positive_int
from cosformer.random_features import RandomFeatures


@register("bigbird")
class BigBird(PatternAttention, RandomFeatures):
    """Window, global and random blocks. Not causal: the paper's decoders use full attention.

    The random blocks are sampled when the mechanism is built, for each key head, and saved with the weights.
    They are counted among the blocks of a row's own text, not among the padding behind it.

    Args:
        block: b, tokens of a block.
        window_blocks: w, odd.
        global_blocks: g; of an odd number, one more is at the front.
        random_blocks: r.
        num_kv_heads: key heads (the model's).
        max_length: the greatest length of a text.
    """

    traits = Traits(
        paper="Big Bird: Transformers for Longer Sequences, arXiv:2007.14062",
        cost="linear",
        bidirectional=True, key_mask=True, grouped_heads=True, random=True,
    )  # fmt: skip

    def __init__(
        self,
        *,
        block: int = 64,
        window_blocks: int = 3,
        global_blocks: int = 2,
        random_blocks: int = 3,
        num_kv_heads: int = 12,
        max_length: int = 4096,
    ):
        super().__init__()
        self.block = positive_int("block", block)
        self.window_blocks = positive_int("window_blocks", window_blocks)
        if self.window_blocks % 2 == 0:
            raise ValueError(
                f"window_blocks must be odd, with its own block in the middle, but got {window_blocks}."
            )
        self.global_blocks = count("global_blocks", global_blocks)
        self.random_blocks = count("random_blocks", random_blocks)
        self.num_kv_heads = positive_int("num_kv_heads", num_kv_heads)
        self.max_length = positive_int("max_length", max_length)
        self.redraw_interval = None
        shape = (self.num_kv_heads, -(-self.max_length // self.block), self.random_blocks)
        self.draws: Tensor
        self.register_buffer("draws", torch.empty(shape, dtype=torch.int64))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.sample_missing()

    def sample(self) -> dict[str, Tensor]:
        """Integers, which no change of the model's dtype rounds: the pattern must not change."""
        return {"draws": torch.randint(2**31, self.draws.shape, device="cpu")}

    def _check(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        super()._check(q, k, v)
        if self.random_blocks:
            for_heads(self.name, k.shape[2], self.num_kv_heads)

    def relations(self, causal: bool, length: Tensor, columns: int) -> Sequence[Relation]:
        within_length(self.name, columns, self.max_length)
        reach = self.window_blocks // 2
        relations: list[Relation] = [Blocks(self.block, reach)]
        if self.global_blocks:
            relations.append(self._ends(length))
        if self.random_blocks:
            draws = self.draws[:, : -(-columns // self.block)]
            blocks = _in_blocks(length, self.block)[..., 0]
            relations.append(RandomBlocks(choose(draws, blocks, reach, *self._first_and_last), self.block))
        return relations

    def full_rows(self, causal: bool, length: Tensor, columns: int) -> Tensor | None:
        return self._ends(length).rows(columns) if self.global_blocks else None

    @property
    def _first_and_last(self) -> tuple[int, int]:
        return self.global_blocks - self.global_blocks // 2, self.global_blocks // 2

    def _ends(self, length: Tensor) -> Ends:
        first, last = (self.block * n for n in self._first_and_last)
        return Ends(first, last, _in_blocks(length, self.block) * self.block)

    def extra_repr(self) -> str:
        return (
            f"block={self.block}, window={self.window_blocks}, global={self.global_blocks}, "
            f"random={self.random_blocks}"
        )


@dataclass(frozen=True)
class RandomBlocks:
    """Key blocks chosen for each query block: chosen [B or 1, Hk, n, r], -1 where there is none."""

    chosen: Tensor
    block: int

    def seen(self, i: Tensor, j: Tensor) -> Tensor:
        # All queries of a group are of one block, that of the first one.
        own = self.chosen[:, :, i[:, 0, 0].clamp_min(0) // self.block]
        key_block = torch.div(j, self.block, rounding_mode="floor")
        return (own[..., None, None, :] == key_block[..., None]).any(-1)

    def lists(self, length: int, device: torch.device) -> Lists:
        inside = torch.arange(self.block, device=device)
        queries = torch.arange(0, length, self.block, device=device)[:, None] + inside
        keys = (self.chosen[..., None] * self.block + inside).flatten(-2)
        return Lists(*(x.masked_fill((x < 0) | (x >= length), -1) for x in (queries, keys)))


def _in_blocks(length: Tensor, block: int) -> Tensor:
    return (length + block - 1) // block


def choose(draws: Tensor, blocks: Tensor, reach: int, first: int, last: int) -> Tensor:
    """Without replacement, r blocks for each block: [B or 1, Hk, n, r], -1 where no more are left.

    draws [Hk, n, r] are large random integers, blocks [B or 1, 1, 1, 1] how many blocks each row has. The
    s-th choice is the (draw mod m)-th of the m blocks that are neither in the window of `reach` blocks on
    either side, nor among the `first` and the `last` ones, nor chosen before.
    """
    beyond = torch.iinfo(torch.int64).max
    own = torch.arange(draws.shape[1], device=draws.device)[:, None]
    window = own + torch.arange(-reach, reach + 1, device=draws.device)
    ends = torch.arange(-last, first, device=draws.device)
    ends = torch.where(ends < 0, blocks + ends, ends)
    shape = (blocks.shape[0], 1, len(own), -1)
    taken = torch.cat([window.expand(shape), ends.expand(shape)], -1)
    taken = taken.masked_fill((taken < 0) | (taken >= blocks), beyond).sort(-1).values
    twice = torch.zeros_like(taken, dtype=torch.bool)
    twice[..., 1:] = taken[..., 1:] == taken[..., :-1]
    taken = taken.masked_fill(twice, beyond)
    free = blocks[..., 0] - (taken < beyond).sum(-1)
    taken = taken.expand(-1, draws.shape[0], -1, -1)
    chosen = []
    for s, draw in enumerate(draws.unbind(-1)):
        choice = draw % (free - s).clamp_min(1)
        for t in taken.sort(-1).values.unbind(-1):  # the k-th free block: step over each taken one below
            choice = choice + (choice >= t)
        none = (free <= s).expand_as(choice)
        taken = torch.cat([taken, choice.masked_fill(none, beyond)[..., None]], -1)
        chosen.append(choice.masked_fill(none, -1))
    return torch.stack(chosen, -1)
