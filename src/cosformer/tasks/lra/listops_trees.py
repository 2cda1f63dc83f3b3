"""Random ListOps trees, grown, valued and written out level by level, many at a time.

The grammar and the limits are those of the Long Range Arena's generator (Tay et al., 2020): a node above the
greatest depth is an operator with probability 0.25, with 2 to 10 arguments; all else is a digit.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

# Token 0 is padding.
SYMBOLS = ("", *"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]")
DIGIT, OPERATOR, CLOSE = 1, 11, 15
MIN, MAX, MED, SM = range(4)

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Grammar:
    """What is grown, and what is kept: min_length < tokens < max_length."""

    min_length: int = 500
    max_length: int = 2000
    max_depth: int = 10
    max_args: int = 10
    operator_probability: float = 0.25


@dataclass(frozen=True)
class _Level:
    """The nodes of one depth, from left to right; the children of a node stand together on the next level.

    tree [n] is the number of each node's tree; arity [n] is 0 for a digit; symbol [n] is a digit's value or
    an operator's number.
    """

    tree: Array
    arity: Array
    symbol: Array

    def of(self, kept: Array) -> "_Level":
        chosen = kept[self.tree]
        return _Level(self.tree[chosen], self.arity[chosen], self.symbol[chosen])


@dataclass(frozen=True)
class Trees:
    """tokens: those of all trees, end to end; lengths and values of each tree."""

    tokens: Array
    lengths: Array
    values: Array


def grow(rng: np.random.Generator, count: int, grammar: Grammar) -> Trees:
    """Grows `count` trees and keeps those of the right length."""
    levels = _levels(rng, count, grammar)
    lengths = np.sum([np.bincount(lv.tree, 1 + (lv.arity > 0), count) for lv in levels], 0).astype(np.int64)
    kept = (lengths > grammar.min_length) & (lengths < grammar.max_length)
    levels = [level.of(kept) for level in levels]
    sizes, values = _sizes_and_values(levels)
    lengths = lengths[kept]
    return Trees(_written(levels, sizes, np.cumsum(lengths) - lengths, int(lengths.sum())), lengths, values)


def _levels(rng: np.random.Generator, count: int, grammar: Grammar) -> list[_Level]:
    levels, tree = [], np.arange(count)
    for depth in range(1, grammar.max_depth + 1):
        n = len(tree)
        operator = rng.random(n) < (grammar.operator_probability if depth < grammar.max_depth else 0)
        arity = np.where(operator, rng.integers(2, grammar.max_args + 1, n), 0)
        symbol = np.where(operator, rng.integers(0, 4, n), rng.integers(0, 10, n))
        levels.append(_Level(tree, arity, symbol))
        tree = np.repeat(tree, arity)
    return levels


def _sizes_and_values(levels: list[_Level]) -> tuple[list[Array], Array]:
    """From the leaves up: tokens of each node's subtree, on all levels; and the values of the roots."""
    sizes: list[Array] = []
    below, values = np.empty(0, np.int64), np.empty(0, np.int64)
    for level in reversed(levels):
        operator = level.arity > 0
        size, value = np.ones(len(level.tree), np.int64), level.symbol.astype(np.int64)
        if operator.any():
            arity = level.arity[operator]
            first = np.cumsum(arity) - arity
            size[operator] = 2 + np.add.reduceat(below, first)
            value[operator] = _applied(level.symbol[operator], values, first, arity)
        sizes.append(size)
        below, values = size, value
    return sizes[::-1], values


def _applied(operator: Array, values: Array, first: Array, arity: Array) -> Array:
    """The value of each operator of the children that stand at first ... first + arity - 1."""
    parent = np.repeat(np.arange(len(arity)), arity)
    ranked = values[np.lexsort((values, parent))]
    low, high = ranked[first + (arity - 1) // 2], ranked[first + arity // 2]
    return np.choose(
        operator,
        [ranked[first], ranked[first + arity - 1], (low + high) // 2, np.add.reduceat(values, first) % 10],
    )


def _written(levels: list[_Level], sizes: list[Array], starts: Array, total: int) -> Array:
    """From the roots down: where each subtree begins, and its symbols written there."""
    tokens = np.zeros(total, np.uint8)
    for depth, (level, size) in enumerate(zip(levels, sizes, strict=True)):
        operator = level.arity > 0
        tokens[starts] = level.symbol + np.where(operator, OPERATOR, DIGIT)
        tokens[(starts + size - 1)[operator]] = CLOSE
        if depth + 1 < len(levels):
            parent = np.repeat(np.arange(len(size)), level.arity)
            before = np.cumsum(sizes[depth + 1]) - sizes[depth + 1]
            first = np.cumsum(level.arity) - level.arity
            starts = starts[parent] + 1 + before - before[first[parent]]
    return tokens
