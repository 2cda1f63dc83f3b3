"""Continuous batching: when a text is finished, the next one takes its row. A state of constant size is one
row of a tensor, so the other rows continue without being read again."""

import hashlib
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from cosformer.models.cache import CosformerCache
from cosformer.models.language import CosformerForCausalLM
from cosformer.ops.checks import positive_int


@dataclass(frozen=True)
class Choice:
    """How the next token is chosen: the most likely one (`greedy`), or sampled, each text with its own
    seed."""

    greedy: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.top_p is not None and not 0 <= self.top_p <= 1:
            raise ValueError(f"top_p must be from 0 to 1, a share of probability, but got {self.top_p!r}.")

    def tokens(self, logits: Tensor, generators: list[torch.Generator]) -> Tensor:
        """[B] from logits [B, vocabulary]; each row draws from its own generator."""
        if self.greedy:
            return logits.argmax(-1)
        scores = logits.float()
        none: Any = None  # input_ids, which these processors do not use
        if self.temperature != 1.0:
            scores = TemperatureLogitsWarper(float(self.temperature))(none, scores)
        if self.top_k is not None:
            scores = TopKLogitsWarper(self.top_k)(none, scores)
        if self.top_p is not None and self.top_p < 1:
            scores = TopPLogitsWarper(self.top_p)(none, scores)
        drawn = torch.stack([torch.rand((), generator=g, dtype=torch.float64) for g in generators])
        below = scores.double().softmax(-1).cumsum(-1)
        # Below the total, which rounding may leave under 1, so that a token of probability 0 is never
        # sampled.
        drawn = drawn.to(below.device)[:, None] * below[:, -1:]
        return torch.searchsorted(below, drawn, right=True).squeeze(1).clamp_max(below.shape[1] - 1)


@dataclass(eq=False)
class Row:
    """A text that is being generated: at most `tokens` tokens after a prompt [T], or up to one of `ends`,
    which is not part of `made`."""

    prompt: Tensor
    tokens: int
    choice: Choice
    generator: torch.Generator
    ends: frozenset[int] = frozenset()
    number: int = 0
    made: list[int] = field(default_factory=list)
    finished: bool = False

    def take(self, token: int) -> None:
        """Adds the next token."""
        if token not in self.ends:
            self.made.append(token)
        self.finished = token in self.ends or len(self.made) == self.tokens


R = TypeVar("R", bound=Row)


class Batch(Generic[R]):
    """Rows that are added and removed, and take their steps together. The text of a row does not depend on
    the other rows.

    A finished row may take one more step before it is removed, so prompt and tokens together have to fit
    into the model.
    """

    def __init__(self, model: CosformerForCausalLM):
        unable = model.config.lacking("recurrent")
        if unable is not None:
            raise ValueError(
                f"a batch whose rows are exchanged needs an attention that carries a state, and {unable!r} "
                "does not: use generate()."
            )
        self.model = model
        self.rows: list[R] = []
        self._cache, self._logits = CosformerCache(model.config), torch.empty(0)

    @torch.inference_mode()
    def exchange(self, leaving: Collection[int], coming: Sequence[R]) -> None:
        """Removes the rows with the indices `leaving`; reads the prompts of `coming`, which take their
        places, or new ones at the end. Nothing has changed if a prompt cannot be read."""
        other, found = CosformerCache(self.model.config), self._logits
        if coming:
            found = _read(self.model, [row.prompt for row in coming], other)
        stay = [i for i in range(len(self.rows)) if i not in leaving]
        if not stay:
            self.rows, self._cache, self._logits = list(coming), other, found
            return
        new, plan = iter(coming), []
        for i, row in enumerate(self.rows):
            now = next(new, None) if i in leaving else row
            if now is not None:
                plan.append((i, now))
        plan += [(stay[0], row) for row in new]
        order = [i for i, _ in plan]
        if order != list(range(len(self.rows))):
            kept = torch.tensor(order, device=self._logits.device)
            self._cache.batch_select_indices(kept)
            self._logits = self._logits[kept]
        if coming:
            arrived = set(map(id, coming))
            at = [place for place, (_, row) in enumerate(plan) if id(row) in arrived]
            places = torch.tensor(at, device=found.device)
            self._cache.replace_rows(places, other)
            self._logits = self._logits.index_copy(0, places, found)
        elif leaving:
            self._cache.recount()
        self.rows = [row for _, row in plan]

    @torch.inference_mode()
    def choose(self) -> Tensor:
        """Chooses the next token of each row, [B], and adds it to the row."""
        groups: dict[Choice, list[int]] = {}
        for i, row in enumerate(self.rows):
            groups.setdefault(row.choice, []).append(i)
        chosen = torch.empty(len(self.rows), dtype=torch.int64, device=self._logits.device)
        for choice, group in groups.items():
            logits = self._logits if len(groups) == 1 else self._logits[group]
            chosen[group] = choice.tokens(logits, [self.rows[i].generator for i in group])
        for row, token in zip(self.rows, chosen.tolist(), strict=True):
            row.take(token)
        return chosen

    @torch.inference_mode()
    def step(self, tokens: Tensor) -> None:
        """Reads a token [B] in each row."""
        output = self.model(tokens[:, None], past_key_values=self._cache, return_dict=True)
        self._logits = output.logits[:, -1]


def ends_of(model: CosformerForCausalLM) -> frozenset[int]:
    """The tokens that end a text."""
    ends = model.generation_config.eos_token_id
    return frozenset(ends if isinstance(ends, list) else [] if ends is None else [ends])


def generate_many(
    model: CosformerForCausalLM,
    prompts: Iterable[Tensor],
    *,
    tokens: int,
    batch_size: int = 16,
    choice: Choice = Choice(),  # noqa: B008 (frozen)
    numbers: Iterable[int] | None = None,
) -> Iterator[tuple[int, list[int]]]:
    """Yields (index of the prompt, new tokens) for each prompt [T] as soon as its text is finished: after
    `tokens` tokens, or at an end token, which is left out. A text does not depend on the other texts.

    Args:
        model: whose layers have states of constant size; others take one text at a time.
        prompts: whole numbers, at least one each; taken one by one, as rows become free.
        tokens: the most to generate for each.
        batch_size: rows of the batch.
        choice: how tokens are chosen.
        numbers: indices of the prompts, which also seed their sampling; 0, 1, 2, ... unless given.
    """
    batch: Batch[Row] = Batch(model)
    tokens, batch_size = positive_int("tokens", tokens), positive_int("batch_size", batch_size)
    if model.config.lacking("constant_state") is not None:
        batch_size = 1
    ends = ends_of(model)
    waiting = (
        Row(_checked(prompt), tokens, choice, _generator(choice.seed, number), ends, number)
        for prompt, number in _numbered(prompts, itertools.count() if numbers is None else numbers)
    )
    while True:
        free = [i for i, row in enumerate(batch.rows) if row.finished]
        batch.exchange(free, list(itertools.islice(waiting, batch_size - len(batch.rows) + len(free))))
        if not batch.rows:
            return
        chosen = batch.choose()
        for row in batch.rows:
            if row.finished:
                yield row.number, row.made
        if not all(row.finished for row in batch.rows):
            batch.step(chosen)


def _numbered(prompts: Iterable[Tensor], numbers: Iterable[int]) -> Iterator[tuple[Tensor, int]]:
    indices = iter(numbers)
    for count, prompt in enumerate(prompts):
        number = next(indices, None)
        if number is None:
            raise ValueError(f"numbers must have one for each prompt, but ended after {count}.")
        yield prompt, number


def _checked(prompt: Any) -> Tensor:
    try:
        ids = torch.as_tensor(prompt)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            "a prompt must be a list or tensor [T] of tokens, but got a "
            f"{type(prompt).__name__} of something else: encode it with the tokenizer."
        ) from None
    if ids.shape == (0,):
        return ids.long()  # an empty list has no type; `_read` refuses it
    if ids.dim() != 1 or ids.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"a prompt must be a list or tensor [T] of tokens, but got {ids.dtype} of shape "
            f"{list(ids.shape)}: one prompt at a time, encoded by the tokenizer."
        )
    return ids


def _generator(seed: int, number: int) -> torch.Generator:
    """Seeded by a hash of both, so that neighbouring prompts and seeds have independent numbers."""
    digest = hashlib.blake2b(f"{seed} {number}".encode(), digest_size=7).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest))


def _read(model: CosformerForCausalLM, prompts: list[Tensor], cache: CosformerCache) -> Tensor:
    """Logits [B, vocabulary] after the prompts, read at once with left padding."""
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
    read = {"past_key_values": cache, "logits_to_keep": 1, "return_dict": True}
    found: Tensor = model(ids, attention_mask=whole, **read).logits[:, -1]
    return found
