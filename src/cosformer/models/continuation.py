"""The text of tokens behind a prompt, as they are generated."""

from collections.abc import Iterable
from typing import Any

_CONTEXT = 8  # tokens before a token that decide how it is written: with a space before it or without


class Continuation:
    """Decodes one token at a time. All parts together are what the tokenizer makes of the prompt and the
    tokens, behind the prompt: spaces between words included, and characters whole."""

    def __init__(self, tokenizer: Any, prompt: Iterable[int] = ()):
        self._tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
        self._special = frozenset(tokenizer.all_special_ids)
        self.tokens: list[int] = []
        self._begin(list(prompt))

    def _begin(self, before: list[int]) -> None:
        """The next token is behind these, whose text is said."""
        shown = [token for token in before if token not in self._special]
        self._before, self._waiting, self._said = shown[-_CONTEXT:], list[int](), 0
        text = self._decode(self._before)
        if _may_change(text):
            self._before, text = [], ""
        self._length = len(text)

    def add(self, tokens: Iterable[int]) -> str:
        """What can be said after these tokens. The beginning of a character waits for its end."""
        new = list(tokens)
        self.tokens += new
        self._waiting += new
        text = self._text()
        if not _may_change(text):
            part = text[self._said :]
            self._begin(self._before + self._waiting)
            return part
        part, self._said = text[self._said : -1], max(self._said, len(text) - 1)
        return part

    def rest(self) -> str:
        """What still waits."""
        return self._text()[self._said :]

    def _text(self) -> str:
        return self._decode(self._before + self._waiting)[self._length :]

    def _decode(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return text


def _may_change(text: str) -> bool:
    """Whether the last character may be the beginning of another."""
    return text.endswith("\N{REPLACEMENT CHARACTER}")


def continuation(tokenizer: Any, prompt: Iterable[int], tokens: Iterable[int]) -> str:
    """The whole text of tokens behind a prompt."""
    made = Continuation(tokenizer, prompt)
    return made.add(tokens) + made.rest()
