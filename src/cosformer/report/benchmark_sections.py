"""Which section a benchmark's record becomes."""

from collections.abc import Sequence

from cosformer.report import benchmarks, window_benchmarks
from cosformer.report.benchmarks import Record
from cosformer.report.document import Section
from cosformer.report.odd import told


def sections(records: Sequence[Record]) -> list[Section]:
    """A section for each kind of benchmark, from its newest record."""
    made = []
    for kind, build in (
        ("cosformer operator benchmark on a GPU", benchmarks.gpu),
        ("cosformer operator benchmark", benchmarks.cpu),
        ("cosformer windows benchmark", window_benchmarks.windows),
        ("cosformer stream benchmark", window_benchmarks.stream),
        ("cosformer attention benchmark", benchmarks.attentions),
        ("cosformer language model benchmark", benchmarks.language_model),
        ("cosformer generation benchmark", benchmarks.generation),
        ("cosformer training benchmark", benchmarks.training),
        ("cosformer tasks benchmark", benchmarks.generators),
    ):
        newest = benchmarks.latest(records, kind)
        if newest is not None:
            with told(f"the record {newest['stem']}.json"):
                made.append(build(newest))
    return made
