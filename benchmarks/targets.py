"""The figures the operator promises, and what a run found. The promises are not for editing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.terminal import times
from cosformer.report.sections.operator_cpu import Results

STATED_FOR = {"device": "cpu", "threads": 2, "dtype": "float32", "batch": 1, "heads": 8, "dim": 64}


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above and below else None


def _speedup(r: Results, rival: str, mode: str, length: int) -> float | None:
    return _ratio(r.time(rival, mode, length), r.time("cosformer", mode, length))


def _time_growth(r: Results, mode: str) -> float | None:
    return _ratio(r.time("cosformer", mode, 32768), r.time("cosformer", mode, 16384))


def _memory_growth(r: Results, mode: str) -> float | None:
    return _ratio(r.extra("cosformer", mode, 32768), r.extra("cosformer", mode, 16384))


def _peak(r: Results, mode: str, length: int) -> float | None:
    return (r.memory("cosformer", mode, length) or {}).get("multiple")


def _decoding(r: Results) -> float | None:
    ratio = _ratio(r.decoding(100_000, "median_s"), r.decoding(100, "median_s"))
    return max(ratio, 1 / ratio) if ratio else None


@dataclass(frozen=True)
class Target:
    says: str
    limit: float
    figure: Callable[[Results], float | None]
    at_least: bool = True
    explained_by: tuple[str, int] | None = None
    """The mode and length whose profile tells where the time or memory goes."""
    strict: bool = False

    def met(self, figure: float) -> bool:
        if self.strict:
            return figure > self.limit if self.at_least else figure < self.limit
        return figure >= self.limit if self.at_least else figure <= self.limit

    def row(self, results: Results) -> list[str]:
        """What was promised, the limit, what was measured, and whether that is enough."""
        sign = ("> " if self.strict else ">= ") if self.at_least else "<= "
        figure = self.figure(results)
        if figure is None:
            return [self.says, sign + times(self.limit), "-", "not measured"]
        verdict = "yes" if self.met(figure) else f"no, by {abs(figure / self.limit - 1):.0%}"
        return [self.says, sign + times(self.limit), times(figure), verdict]


def _faster(mode: str, length: int, limit: float) -> Target:
    return Target(
        f"{mode}, T = {length:,}: faster than SDPA",
        limit,
        lambda r: _speedup(r, "sdpa", mode, length),
        explained_by=(mode, length),
    )


def _linear(mode: str) -> list[Target]:
    case = (mode, 32768)
    return [
        Target(f"{mode}, 16K to 32K tokens: time", 2.3, lambda r: _time_growth(r, mode), False, case),
        Target(f"{mode}, 16K to 32K tokens: memory", 2.1, lambda r: _memory_growth(r, mode), False, case),
    ]


def _small(mode: str, length: int) -> Target:
    says = f"{mode}, T = {length:,}: peak extra memory over the bytes of q"
    return Target(says, 8, lambda r: _peak(r, mode, length), False, (mode, length))


TARGETS = [
    _faster("causal", 1024, 2),
    _faster("causal", 4096, 6),
    _faster("bidirectional", 1024, 3),
    _faster("bidirectional", 4096, 10),
    *_linear("causal"),
    *_linear("bidirectional"),
    *(_small(mode, length) for mode in ("causal", "bidirectional") for length in (1024, 4096, 32768)),
    Target(
        "causal, T = 4,096: faster than attention built on causal_dot_product",
        1,
        lambda r: _speedup(r, "fast-transformers", "causal", 4096),
        explained_by=("causal", 4096),
        strict=True,
    ),
    Target(
        "causal, T = 4,096: faster than causal_dot_product alone",
        1,
        lambda r: _speedup(r, "causal_dot_product", "causal", 4096),
        explained_by=("causal", 4096),
        strict=True,
    ),
    Target(
        "decoding: time of a token at 100,000 against at 100", 1.2, _decoding, False, ("decoding", 100_000)
    ),
    Target(
        "decoding: bytes of the state at 100,000 against at 100",
        1,
        lambda r: _ratio(r.decoding(100_000, "state_bytes"), r.decoding(100, "state_bytes")),
        False,
    ),
]


def missed(results: Results) -> list[Target]:
    found = [(t, t.figure(results)) for t in TARGETS]
    return [t for t, figure in found if figure is not None and not t.met(figure)]


def verdict(data: dict[str, Any]) -> tuple[str, list[list[str]]]:
    """What is said about the promises, and a row for each."""
    results = Results(data)
    said = "Stated for two CPU cores, float32, B = 1, H = 8, D = 64, forward+backward."
    if results.settings["device"] != "cpu":
        return said + " Not judged on another device.", []
    differs = conditions(results)
    if differs:
        said += f" This run had {', '.join(differs)}: the table is for orientation."
    elif any(t.figure(results) is None for t in TARGETS):
        said += " What this run left out is marked as not measured."
    count = len(missed(results))
    if count:
        said += f" Missed: {count}; see *Where the time goes* below."
    return said, [t.row(results) for t in TARGETS]


def conditions(results: Results) -> list[str]:
    """How this run differs from what the targets are stated for; empty where it does not."""
    return [
        f"{name} {results.settings[name]} instead of {wanted}"
        for name, wanted in STATED_FOR.items()
        if results.settings[name] != wanted
    ]
