"""Many texts through one batch: a row that is finished leaves, and the next text takes its place. A state of
constant size is a row of a tensor, so that the others go on without being read again."""

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


@dataclass(eq=False)
class Row:
    """A text that is being made: `tokens` of them behind a prompt [T], at most, or up to one of `ends`, which
    is left out of what was `made`."""

    prompt: Tensor
    tokens: int
    choice: Choice
    generator: torch.Generator
    ends: frozenset[int] = frozenset()
    number: int = 0
    made: list[int] = field(default_factory=list)
    finished: bool = False

    def take(self, token: int) -> None:
        """The next token."""
        if token not in self.ends:
            self.made.append(token)
        self.finished = token in self.ends or len(self.made) == self.tokens


R = TypeVar("R", bound=Row)


class Batch(Generic[R]):
    """Rows that come and go, and take their steps together. What a row gets does not depend on the others.

    A row that is finished may take one step more, until it leaves: prompt and tokens together have to fit
    into the model.
    """

    def __init__(self, model: CosformerForCausalLM):
        unable = model.config.lacking("recurrent")
        if unable is not None:
            raise ValueError(
                f"a batch of rows that come and go needs an attention that carries a state, and {unable!r} "
                "does not: use generate()."
            )
        self.model = model
        self.rows: list[R] = []
        self._cache, self._logits = CosformerCache(model.config), torch.empty(0)

    @torch.inference_mode()
    def exchange(self, leaving: Collection[int], coming: Sequence[R]) -> None:
        """Rows with these numbers leave; those that come are read, and take their places, or those behind the
        last. Nothing has changed if a prompt cannot be read."""
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
        """[B], the next token of each row, which has taken it."""
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
    batch: Batch[Row] = Batch(model)
    tokens, batch_size = positive_int("tokens", tokens), positive_int("batch_size", batch_size)
    if model.config.lacking("constant_state") is not None:
        batch_size = 1
    ends = ends_of(model)
    numbered = zip(prompts, itertools.count() if numbers is None else numbers, strict=False)
    waiting = (
        Row(prompt, tokens, choice, _generator(choice.seed, number), ends, number)
        for prompt, number in numbered
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


def _generator(seed: int, number: int) -> torch.Generator:
    """Mixed, so that the numbers of neighbours and of other seeds have nothing in common."""
    digest = hashlib.blake2b(f"{seed} {number}".encode(), digest_size=7).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest))


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
    read = {"past_key_values": cache, "logits_to_keep": 1, "return_dict": True}
    found: Tensor = model(ids, attention_mask=whole, **read).logits[:, -1]
    return found
