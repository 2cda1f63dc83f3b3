"""The figures the operator promises, and what a run found. The promises are not for editing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cosformer.report.sections.common import PHASE
from cosformer.terminal import times

STATED_FOR = {"device": "cpu", "threads": 2, "dtype": "float32", "batch": 1, "heads": 8, "dim": 64}


class Results:
    """Look-ups in the record of a run."""

    def __init__(self, data: dict[str, Any]):
        self.data = data
        self.settings: dict[str, Any] = data["settings"]
        self._timings = {self._key(t): t for t in data["timings"]}
        self._memory = {self._key(m): m for m in data["memory"]}

    @staticmethod
    def _key(record: dict[str, Any]) -> tuple[Any, ...]:
        return record["contender"], record["mode"], record["phase"], record["length"]

    def timing(self, contender: str, mode: str, phase: str, length: int) -> dict[str, Any] | None:
        return self._timings.get((contender, mode, phase, length))

    def time(self, contender: str, mode: str, length: int, phase: str = PHASE) -> float | None:
        return (self.timing(contender, mode, phase, length) or {}).get("median_s")

    def memory(self, contender: str, mode: str, length: int) -> dict[str, Any] | None:
        return self._memory.get((contender, mode, PHASE, length))

    def extra(self, contender: str, mode: str, length: int) -> float | None:
        return (self.memory(contender, mode, length) or {}).get("extra_bytes")

    def decoding(self, position: int, field: str) -> float | None:
        return next((d[field] for d in self.data["decoding"] if d["position"] == position), None)


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


def conditions(results: Results) -> list[str]:
    """How this run differs from what the targets are stated for; empty where it does not."""
    return [
        f"{name} {results.settings[name]} instead of {wanted}"
        for name, wanted in STATED_FOR.items()
        if results.settings[name] != wanted
    ]
