"""Every task at a glance: the five rows of the paper's tables, and ours, side by side."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from cosformer.report.document import Section, Table
from cosformer.report.sections import arena, evidence
from cosformer.report.sections.common import Record
from cosformer.report.sections.places import NOT_RUN, Places
from cosformer.report.sections.planned import OURS, WINDOWS

COLUMNS = ("softmax", "linear", "relu", "cosformer", WINDOWS, OURS)


class Line(NamedTuple):
    """A task: where its runs are, and how its scores are written."""

    words: str
    plan: str
    column: str
    form: str = ".2f"
    scale: float = 100.0
    split: str = "test"


LANGUAGE = (
    Line("enwik8, bits per character", "enwik8", evidence.LONG, ".3f", 1.0),
    Line("enwik8, T = 8,192, equal seconds, bits per character", "enwik8", evidence.LONGER, ".3f", 1.0),
    Line("enwik8, small models, bits per character", "cosine", "enwik8", ".3f", 1.0),
    Line("WikiText-2, perplexity", "wikitext2", "wikitext2", ".1f", 1.0),
    Line("masked pieces of IMDB, perplexity (validation)", "pretrain", "mlm", ".0f", 1.0, "valid"),
    Line("masked bytes of WikiText-2, perplexity", "mlm", "mlm", ".2f", 1.0),
)
TUNED = (
    Line("SST-2, accuracy", "pretrain", "sst2"),
    Line("IMDB, accuracy", "pretrain", "imdb"),
    Line("MRPC, accuracy", "pretrain", "mrpc"),
    Line("CoLA, Matthews", "pretrain", "cola"),
    Line("RTE, accuracy", "pretrain", "rte"),
    Line("STS-B, Pearson", "pretrain", "stsb"),
)
ARENA = tuple(Line(f"{words}, accuracy", "lra", column) for words, column in arena.TASKS.items())
AVERAGE = "average of the arena"
SMALL_AVERAGE = "average of the arena in small"
# Plans whose rows have names of their own.
_NAMES: dict[str, Callable[[str], str]] = {"enwik8": evidence.in_study, "cosine": evidence.in_small_study}


def sections(records: Sequence[Record], failures: Mapping[str, Record]) -> list[Section]:
    """One, or none where no plan has left a record."""
    places = evidence.places_of(records, failures)
    return [section(places)] if places.records else []


def section(places: Places) -> Section:
    """Above the tables that say more of each."""

    def cells(line: Line) -> list[str]:
        rows = [_NAMES[line.plan](row) if line.plan in _NAMES else row for row in COLUMNS]
        return [places.cell(line.plan, line.column, row, line.form, line.scale, line.split) for row in rows]

    lower, higher = ([[line.words, *cells(line)] for line in lines] for lines in (LANGUAGE, (*TUNED, *ARENA)))
    for words, plan in ((AVERAGE, "lra"), (SMALL_AVERAGE, arena.SMALL)):
        higher.append([words, *(arena.average(places, plan, row) for row in COLUMNS)])
    caption = (
        "linear is elu + 1, relu cosFormer without the cosine, windows cosFormer with a window for every "
        "head, a gate and norms, and ours the default model: the same with one layer of six (of four in "
        "small models and the arena; none in Pathfinder's two) a softmax of 1,024 tokens (of 512 in small "
        "models). In the arena windows and ours have learned positions or none, where the default model has "
        "rotary ones. Test scores, with the settings of each that were best on validation; the tables of the "
        "paper say how many were tried, and how each row is made again. One seed; where several were run, "
        f'the mean and half of their range. "{NOT_RUN}": there is no record yet.'
    )
    return Section(
        "At a glance",
        [
            Table(["lower is better", *COLUMNS], lower),
            Table(["higher is better", *COLUMNS], higher, caption),
        ],
    )
