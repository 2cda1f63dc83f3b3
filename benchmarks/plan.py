"""What a plan of runs is made of: entries, the learning rates they wait for, and what they need to exist.

A plan is data: a list of `Entry`, each a complete run of a recipe with its place in a table. The runs of the
paper's tables are in evidence_plan.py, those of the study of the models in enwik8_plan.py.
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cosformer.models import defaults
from cosformer.report.sections.places import cost
from cosformer.training import Run, recipes
from cosformer.training.run import digest

Record = dict[str, Any]
Records = Mapping[str, Record]

# Where the tasks find their data under COSFORMER_DATA; the others are generated.
FILES = {
    "enwik8": ["enwik8/enwik8.xz"],
    "wikitext2": [f"wikitext-2/wiki.{split}.tokens.xz" for split in ("train", "valid", "test")],
    "mlm": [f"wikitext-2/wiki.{split}.raw.xz" for split in ("train", "valid", "test")],
    "image": [
        f"cifar10/gray_{part}.png" for part in ("train1", "train2", "train3", "train4", "train5", "test")
    ]
    + ["cifar10/labels.json"],
    "text": ["imdb/labeled.jsonl.xz"],
    "citations": ["citations/citations.tsv.xz", "citations/papers.jsonl.xz"],
    "mlm of imdb": ["imdb/unsup.jsonl.xz"],
    "imdb": ["imdb/labeled.jsonl.xz", "imdb/unsup.jsonl.xz"],
    **{
        task: ["imdb/unsup.jsonl.xz", *(f"glue/{folder}/{part}.tsv" for part in ("train", "dev"))]
        for task, folder in (
            ("sst2", "SST-2"), ("mrpc", "MRPC"), ("cola", "CoLA"), ("rte", "RTE"), ("stsb", "STS-B"),
        )
    },
}  # fmt: skip


NOT_NEEDED = "not needed"


class NotYet(Exception):
    """A run that cannot be made now; the sentence says what it waits for, or why it is not needed."""


@dataclass(frozen=True)
class Entry:
    """A complete run and its place in a table.

    Args:
        plan, column, row: the table, and where in it the figure belongs.
        recipe, scale, attention, overrides: as `cosformer.training.recipes.build` takes them.
        seconds: that it takes alone on an H200, all included.
        memory: GiB of the GPU.
        load: the share of the GPU that it keeps busy when it is alone.
        part: what else tells it from other entries of the same place: a learning rate that is tried, a seed.
        tries: names of entries; it takes the learning rate of the one that was best on validation.
        repeats: that of `tries` which it is with another seed; made only if that one was the best.
        initial: the entry whose weights it starts from; they last as long as the folder of the runs.
        keep: whether others start from its weights.
        captured: whether its steps can be captured as a CUDA graph: nothing in them waits for the GPU.
    """

    plan: str
    column: str
    row: str
    recipe: str
    attention: str | list[str]
    seconds: float
    memory: float = 8.0
    load: float = 0.6
    scale: str = "small"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    part: str = ""
    tries: tuple[str, ...] = ()
    repeats: str = ""
    initial: "Entry | None" = None
    keep: bool = False
    captured: bool = True

    @property
    def name(self) -> str:
        """Of all plans only this entry has it; records are found by it."""
        return "/".join(word for word in (self.plan, self.column, self.row, self.part) if word)

    def place(self) -> dict[str, str]:
        """What its record says beside the run's own figures."""
        return {name: getattr(self, name) for name in ("plan", "column", "row", "part", "name")}


def build(entry: Entry, records: Records, failed: Collection[str] = ()) -> Run:
    """The run of an entry; `NotYet` where it needs records that are still to be made. A learning rate that
    failed was tried, too."""
    wanted = dict(entry.overrides)
    if entry.tries:
        tried = [records[name] for name in entry.tries if name in records]
        left = [name for name in entry.tries if name not in records and name not in failed]
        if left:
            raise NotYet(f"waits for {len(left)} of {len(entry.tries)} tries: {left[0]}, ...")
        if not tried:
            raise NotYet(f"{NOT_NEEDED}: all of {len(entry.tries)} tries failed; --retry makes them again")
        best = min(tried, key=cost)
        if entry.repeats and best["experiment"]["name"] != entry.repeats:
            raise NotYet(f"{NOT_NEEDED}: {best['experiment']['name']} was better on validation")
        wanted["learning_rate"] = best["settings"]["learning_rate"]
    if entry.initial is not None:
        wanted["initial"] = weights_of(entry.initial, records, failed)
    return recipes.build(entry.recipe, scale=entry.scale, attention=entry.attention, **wanted)


def weights_of(entry: Entry, records: Records, failed: Collection[str] = ()) -> str:
    """The name of its weights: of other settings, they are others. Where they lie differs from machine to
    machine."""
    return f"{entry.name}, {_complete(build(entry, records, failed))[:8]}"


def by_name(records: Iterable[Record]) -> dict[str, Record]:
    """The newest record of each entry."""
    dated = sorted(records, key=lambda r: r["date"])
    return {r["experiment"]["name"]: r for r in dated if "experiment" in r}


def is_done(entry: Entry, run: Run, records: Records) -> bool:
    """Whether there is a record of just this run; one with other settings is of another. A field of the model
    that one of the two leaves out is as in the paper's model; compiled or captured, a run is the same."""
    found = records.get(entry.name)
    return found is not None and _complete(Run.from_dict(found["settings"])) == _complete(run)


# Fields that are left out of a run's digest unless the run sets them: the attention, and fields that models
# got after the first records were made, whose digests would change otherwise.
_OTHERS = ("attention", "loss_chunk", "ordered_tokens")


def _complete(run: Run) -> str:
    plain = {name: value for name, value in defaults.VERSIONS[1].items() if name not in _OTHERS}
    return digest(run.replace(model={**plain, **run.model}, compile=False, cuda_graph=False))


def files_of(entries: Iterable[Entry]) -> list[str]:
    """The data files that some entries read, each once."""
    return list(dict.fromkeys(name for e in entries for name in _data_of(e)))


def _data_of(entry: Entry) -> list[str]:
    settings = entry.overrides.get("task_settings", {})
    if "of" in settings:  # holes in the inputs of that task
        return FILES.get(settings["of"], [])
    corpus = settings.get("corpus")
    pieces = FILES["mlm"] if settings.get("bpe_corpus") == "wikitext2" else []
    return [*FILES.get(entry.recipe if corpus is None else f"{entry.recipe} of {corpus}", []), *pieces]


def on_cpu(
    plan: str,
    column: str,
    row: str,
    attention: str | list[str],
    rate: float | None,
    overrides: dict[str, Any],
) -> Entry:
    """An entry of a study for CPU cores, named after its learning rate where that is tried."""
    chosen = {} if rate is None else {"learning_rate": rate}
    own = {"precision": "fp32", "device": "cpu", "data": "loader"}
    return Entry(
        plan, column, row, column, attention, 130, 0.0, 1.0, overrides={**overrides, **own, **chosen},
        part="" if rate is None else f"rate {rate:g}", captured=False,
    )  # fmt: skip


def with_seed(entry: Entry, seed: int) -> Entry:
    part = ", ".join(word for word in (entry.part, f"seed {seed}") if word)
    return dataclasses.replace(entry, part=part, overrides={**entry.overrides, "seed": seed})


def repeats(tried: Iterable[Entry], seeds: Iterable[int]) -> list[Entry]:
    """Of each place the best of what is tried there, with further seeds."""
    places: dict[tuple[str, str], list[Entry]] = {}
    for entry in tried:
        places.setdefault((entry.column, entry.row), []).append(entry)
    return [
        dataclasses.replace(with_seed(e, seed), tries=tuple(x.name for x in own), repeats=e.name)
        for seed in seeds
        for own in places.values()
        for e in own
    ]
