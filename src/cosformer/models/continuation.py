"""The text of tokens behind a prompt, as they are generated."""

from collections.abc import Iterable
from typing import Any

_CONTEXT = 8  # tokens before a token that decide how it is written: with a space before it or not
_LONGEST = 16  # tokens that wait for the end of a character, which has fewer
_MARK = "\N{REPLACEMENT CHARACTER}"  # for what is no character, or none yet


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
        self._before, self._waiting = shown[-_CONTEXT:], list[int]()
        text = self._decode(self._before)
        if text.endswith(_MARK):
            self._before, text = [], ""
        self._length = len(text)

    def add(self, tokens: Iterable[int]) -> str:
        """What can be said after these tokens. The beginning of a character waits for its end."""
        new = list(tokens)
        self.tokens += new
        self._waiting += new
        text = self._text(self._waiting)
        if not text.endswith(_MARK):
            self._begin(self._before + self._waiting)
            return text
        if len(self._waiting) <= _LONGEST:
            return ""
        # Much of this will never be a character: all but the last tokens, cut where no character is.
        for kept in range(3, _LONGEST):
            said, rest = self._waiting[:-kept], self._waiting[-kept:]
            part = self._text(said)
            if part + self._decode(rest) == text:
                break
        self._begin([])
        self._waiting = rest
        return part

    def rest(self) -> str:
        """What still waits."""
        return self._text(self._waiting)

    def _text(self, tokens: list[int]) -> str:
        return self._decode(self._before + tokens)[self._length :]

    def _decode(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return text


def continuation(tokenizer: Any, prompt: Iterable[int], tokens: Iterable[int]) -> str:
    """The whole text of tokens behind a prompt."""
    made = Continuation(tokenizer, prompt)
    return "".join(made.add([token]) for token in tokens) + made.rest()
