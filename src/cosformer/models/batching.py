"""Many texts through one batch: a row that is finished leaves, and the next text takes its place. A state of
constant size is a row of a tensor, so that the others go on without being read again."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from cosformer.models.cache import CosformerCache
from cosformer.models.language import CosformerForCausalLM
from cosformer.ops.checks import positive_int


@dataclass(frozen=True)
class Choice:
    """How the next token is chosen: the likeliest (`greedy`), or drawn, by numbers of the text's own."""

    greedy: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def tokens(self, logits: Tensor, generators: list[torch.Generator]) -> Tensor:
        """[B] from logits [B, vocabulary]; each row draws from its own generator."""
        if self.greedy:
            return logits.argmax(-1)
        scores = logits.float()
        none: Any = None  # what was said so far, which these do not look at
        if self.temperature != 1.0:
            scores = TemperatureLogitsWarper(float(self.temperature))(none, scores)
        if self.top_k is not None:
            scores = TopKLogitsWarper(self.top_k)(none, scores)
        if self.top_p is not None and self.top_p < 1:
            scores = TopPLogitsWarper(self.top_p)(none, scores)
        drawn = torch.stack([torch.rand((), generator=g, dtype=torch.float64) for g in generators])
        below = scores.double().softmax(-1).cumsum(-1)
        # At most the whole sum, which rounding may leave under 1; what has no probability is never drawn.
        drawn = drawn.to(below.device)[:, None] * below[:, -1:]
        return torch.searchsorted(below, drawn, right=True).squeeze(1).clamp_max(below.shape[1] - 1)


@dataclass
class _Row:
    number: int
    generator: torch.Generator
    made: list[int] = field(default_factory=list)


@torch.inference_mode()
def generate_many(
    model: CosformerForCausalLM,
    prompts: Iterable[Tensor],
    *,
    tokens: int,
    batch_size: int = 16,
    choice: Choice = Choice(),  # noqa: B008 (frozen)
    numbers: Iterable[int] | None = None,
) -> Iterator[tuple[int, list[int]]]:
    """(number of the prompt, new tokens) of each prompt [T], as soon as it is finished: after `tokens` of
    them, or with the end of the text, which is left out. What a text gets does not depend on the others.

    Args:
        model: whose layers have states of constant size; others take one text at a time.
        prompts: at least one token each; asked for one by one, as rows become free.
        tokens: to be made for each, at most.
        batch_size: texts at a time.
        choice: of tokens.
        numbers: of the prompts, which also seed their draws; 0, 1, 2, ... unless given.
    """
    if model.config.lacking("recurrent") is not None:
        raise ValueError(
            f"generate_many needs an attention that carries a state, and "
            f"{model.config.lacking('recurrent')!r} does not: use generate()."
        )
    tokens, batch_size = positive_int("tokens", tokens), positive_int("batch_size", batch_size)
    if model.config.lacking("constant_state") is not None:
        batch_size = 1
    ends = model.generation_config.eos_token_id
    last = set(ends if isinstance(ends, list) else [] if ends is None else [ends])
    waiting = zip(prompts, itertools.count() if numbers is None else numbers, strict=False)
    rows: list[_Row] = []
    cache, logits = CosformerCache(model.config), torch.empty(0)
    free: list[int] = []
    while True:
        new = _take(waiting, batch_size if not rows else len(free), choice.seed)
        if new:
            other = CosformerCache(model.config)
            found = _read(model, [prompt for prompt, _ in new], other)
            if not rows:
                cache, logits, rows = other, found, [row for _, row in new]
            else:
                at = torch.tensor(free[: len(new)], device=found.device)
                cache.replace_rows(at, other)
                logits = logits.index_copy(0, at, found)
                for place, (_, row) in zip(free, new, strict=False):
                    rows[place] = row
            free = free[len(new) :]
        if free:  # nobody is waiting any more
            stay = [i for i in range(len(rows)) if i not in free]
            rows, free = [rows[i] for i in stay], []
            if rows:
                kept = torch.tensor(stay, device=logits.device)
                cache.batch_select_indices(kept)
                cache.recount()
                logits = logits[kept]
        if not rows:
            return
        chosen = choice.tokens(logits, [row.generator for row in rows])
        for i, (row, token) in enumerate(zip(rows, chosen.tolist(), strict=True)):
            if token not in last:
                row.made.append(token)
            if token in last or len(row.made) == tokens:
                free.append(i)
                yield row.number, row.made
        if len(free) < len(rows):
            logits = model(chosen[:, None], past_key_values=cache).logits[:, -1]
        else:
            rows, free = [], []


def _take(waiting: Iterator[tuple[Tensor, int]], count: int, seed: int) -> list[tuple[Tensor, _Row]]:
    """The next prompts, at most `count` of them."""
    found = []
    for prompt, number in itertools.islice(waiting, count):
        # Mixed, so that the numbers of neighbours and of other seeds have nothing in common.
        digest = hashlib.blake2b(f"{seed} {number}".encode(), digest_size=7).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest))
        found.append((prompt, _Row(number, generator)))
    return found


def _read(model: CosformerForCausalLM, prompts: list[Tensor], cache: CosformerCache) -> Tensor:
    """Logits [B, vocabulary] behind the prompts, read at once with padding in front."""
    length = max(len(prompt) for prompt in prompts)
    ids = torch.zeros(len(prompts), length, dtype=torch.int64)
    mask = torch.zeros(len(prompts), length, dtype=torch.bool)
    for i, prompt in enumerate(prompts):
        if len(prompt) == 0:
            raise ValueError(
                "a prompt must have at least one token: begin with the token that begins a text."
            )
        ids[i, -len(prompt) :] = prompt
        mask[i, -len(prompt) :] = True
    ids, mask = ids.to(model.device), mask.to(model.device)
    whole = None if mask.all() else mask
    found: Tensor = model(ids, attention_mask=whole, past_key_values=cache, logits_to_keep=1).logits[:, -1]
    return found
