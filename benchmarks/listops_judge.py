"""A second opinion on ListOps, that shares nothing with the generator it judges.

`value` reads a text and descends into it; `published` grows trees node by node, as the published generator's
rules say (Tay et al., 2020). The generator under test does both level by level, on arrays.
"""

import random
from collections.abc import Callable, Iterator

DEEPEST, MOST_ARGUMENTS, OPERATOR_PROBABILITY, SHORTEST, LONGEST = 10, 10, 0.25, 500, 2000


def _median(values: list[int]) -> int:
    """Its integer part."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else int((ordered[half - 1] + ordered[half]) / 2)


_APPLY: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": _median,
    "[SM": lambda x: sum(x) % 10,
}


def value(text: str) -> int:
    """Of a tree such as `[MAX 4 [MIN 2 3 ] 0 ]`. Raises ValueError where it is none."""
    symbols = iter(text.split())
    found = _value(next(symbols, ""), symbols)
    left = next(symbols, None)
    if left is not None:
        raise ValueError(f"a tree ends before {left!r}: {text[:60]!r}.")
    return found


def _value(symbol: str, rest: Iterator[str]) -> int:
    if symbol not in _APPLY:
        return int(symbol)
    arguments: list[int] = []
    for following in rest:
        if following == "]":
            return _APPLY[symbol](arguments)
        arguments.append(_value(following, rest))
    raise ValueError(f"{symbol} is never closed.")


def depth(text: str) -> int:
    """Levels of a tree; a digit alone has one."""
    opened = deepest = 0
    for symbol in text.split():
        opened += symbol in _APPLY
        deepest = max(deepest, opened + symbol.isdigit())
        opened -= symbol == "]"
    return deepest


def published(rng: random.Random, count: int) -> tuple[list[str], int]:
    """`count` trees within the limits of length, and how many were generated to get them."""
    kept: list[str] = []
    grown = 0
    while len(kept) < count:
        grown += 1
        symbols = _grown(rng, 1)
        if SHORTEST < len(symbols) < LONGEST:
            kept.append(" ".join(symbols))
    return kept, grown


def _grown(rng: random.Random, level: int) -> list[str]:
    if level >= DEEPEST or rng.random() >= OPERATOR_PROBABILITY:
        return [str(rng.randrange(10))]
    operator = rng.choice(list(_APPLY))
    arguments = (_grown(rng, level + 1) for _ in range(rng.randint(2, MOST_ARGUMENTS)))
    return [operator, *(symbol for argument in arguments for symbol in argument), "]"]
