"""Which section of the report a benchmark's record becomes."""

from collections.abc import Sequence

from cosformer.report.document import Section
from cosformer.report.odd import told
from cosformer.report.sections import (
    attention,
    campaign,
    generation,
    generation_gpu,
    generators,
    operator_cpu,
    operator_gpu,
    scaling,
    serving,
    text_model,
    training,
    windows,
)
from cosformer.report.sections.common import Record, latest

KINDS = {
    "cosformer operator benchmark on a GPU": operator_gpu.section,
    "cosformer operator benchmark": operator_cpu.section,
    "cosformer windows benchmark": windows.windows,
    "cosformer stream benchmark": windows.stream,
    "cosformer attention benchmark": attention.section,
    "cosformer text model benchmark": text_model.section,
    "cosformer language model benchmark": training.language_model_section,
    "cosformer generation benchmark": generation.section,
    "cosformer generation on a GPU benchmark": generation_gpu.section,
    "cosformer serving benchmark": serving.serving,
    "cosformer leaks benchmark": serving.leaks,
    "cosformer training benchmark": training.training_section,
    "cosformer one rank benchmark": training.one_rank_section,
    "cosformer tasks benchmark": generators.section,
    "cosformer scaling simulation": scaling.section,
    "cosformer campaign": campaign.section,
}
# Kinds of which the newest record of a GPU and that of a CPU are both shown.
BY_DEVICE = ("cosformer windows benchmark",)


def benchmarks(records: Sequence[Record]) -> list[Section]:
    """A section for each kind of benchmark, from its newest record."""
    made = []
    for kind, build in KINDS.items():
        parts = [list(records)]
        if kind in BY_DEVICE:
            parts = [
                [r for r in records if ("gpu" in (r.get("hardware") or {})) == gpu] for gpu in (True, False)
            ]
        for newest in filter(None, (latest(part, kind) for part in parts)):
            with told(f"the record {newest['stem']}.json"):
                made.append(build(newest))
    return made
