"""Records of planned runs by their place: the plan, the column and the row of a table that they belong to."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import mean

from cosformer.report.sections.common import Record
from cosformer.report.sections.runs import flat

NOT_RUN, FAILED = "not run", "failed"


@dataclass(frozen=True)
class Places:
    """
    Args:
        records: of runs; those that no plan has made are left out.
        failures: reasons by the names of entries.
    """

    records: Iterable[Record]
    failures: Mapping[str, Record] = field(default_factory=dict)

    def __post_init__(self) -> None:
        dated = sorted((r for r in self.records if "experiment" in r), key=lambda r: r["date"])
        newest = {r["experiment"]["name"]: r for r in dated}
        object.__setattr__(self, "records", list(newest.values()))

    def rows(self, plan: str) -> list[str]:
        """Of a plan, in the order of their records."""
        own = (r["experiment"] for r in self.records)
        return list(dict.fromkeys(e["row"] for e in own if e["plan"] == plan))

    def tries(self, plan: str, column: str, row: str) -> list[list[Record]]:
        """Runs of a place, those that differ in the seed alone (or in being compiled or captured) together;
        the best on validation first: by their first seed, for further seeds are made of the best alone."""
        alike: dict[str, list[Record]] = {}
        for r in self.records:
            e = r["experiment"]
            if (e["plan"], e["column"], e["row"]) == (plan, column, row):
                own = {n: x for n, x in flat(r["settings"]).items() if n not in ("compile", "cuda_graph")}
                alike.setdefault(json.dumps(own, sort_keys=True), []).append(r)
        seeds = [sorted(runs, key=lambda r: r["settings"]["seed"]) for runs in alike.values()]
        return sorted(seeds, key=lambda runs: cost(runs[0]))

    def best(self, plan: str, column: str, row: str) -> list[Record]:
        """Of the settings that were best on validation: a run for each seed; none where nothing was run."""
        return next(iter(self.tries(plan, column, row)), [])

    def cell(
        self, plan: str, column: str, row: str, form: str = ".4f", scale: float = 1, split: str = "test"
    ) -> str:
        """The score of the best settings: the mean over seeds, and half the range where there are several."""
        found = scores(self.best(plan, column, row), split)
        if not found:
            begun = f"{plan}/{column}/{row}"
            tried = any(name == begun or name.startswith(f"{begun}/") for name in self.failures)
            return FAILED if tried else NOT_RUN
        half = (max(found) - min(found)) / 2 * scale
        return f"{mean(found) * scale:{form}}" + (f" ± {half:{form}}" if len(found) > 1 else "")


def scores(runs: Iterable[Record], split: str = "test") -> list[float]:
    return [r["metric"][split][r["metric"]["name"]] for r in runs]


def cost(record: Record) -> float:
    """The score on the validation split, so that less is better."""
    metric = record["metric"]
    score: float = metric["valid"][metric["name"]]
    return -score if metric["higher_is_better"] else score
