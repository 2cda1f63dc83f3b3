"""The content of a report, without its appearance: sections of blocks, which are rendered as pages and
Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

Point = tuple[float, float]
GUIDE = -1
"""The colour of lines that were not measured: slopes, limits."""


def slug(words: str) -> str:
    """Words as the name of a file or of a place on a page: letters, figures and hyphens."""
    return "-".join("".join(c if c.isalnum() else " " for c in words.lower()).split())


@dataclass(frozen=True)
class Text:
    """A paragraph; `backquotes` mark code, words in brackets before an address in parentheses a link."""

    words: str
    kind: ClassVar[str] = "text"


@dataclass(frozen=True)
class Code:
    """A command, or text that is shown verbatim."""

    words: str
    kind: ClassVar[str] = "code"


@dataclass(frozen=True)
class Items:
    """A list of sentences."""

    words: Sequence[str]
    kind: ClassVar[str] = "items"


@dataclass(frozen=True)
class Table:
    """The first column names the rows; the others, where they are figures, stand to the right."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    figures: bool = True
    kind: ClassVar[str] = "table"


@dataclass(frozen=True)
class Line:
    """A name and its points; `colour` numbers the palette, so that a mechanism has the same everywhere."""

    name: str
    points: Sequence[Point]
    colour: int


@dataclass(frozen=True)
class Plot:
    """Lines against x. `x_unit` and `y_unit` say how figures are written (`plotter.written`). The caption is
    the sentence that says what to see."""

    name: str
    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    caption: str
    x_unit: str = "number"
    y_unit: str = "number"
    log_x: bool = False
    log_y: bool = False
    kind: ClassVar[str] = "plot"

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", slug(self.name))


@dataclass(frozen=True)
class Figure:
    """Plots in one picture, `columns` beside one another; a page shows them one by one."""

    title: str
    plots: Sequence[Plot]
    heading: str = ""
    columns: int = 3
    kind: ClassVar[str] = "figure"


@dataclass(frozen=True)
class Map:
    """Weights between 0 and 1, row by row."""

    name: str
    weights: Sequence[Sequence[float]]
    colour: int


@dataclass(frozen=True)
class Maps:
    title: str
    maps: Sequence[Map]
    caption: str
    kind: ClassVar[str] = "maps"


@dataclass(frozen=True)
class Sample:
    """A prompt and the text that a model generated after it."""

    name: str
    prompt: str
    text: str


@dataclass(frozen=True)
class Samples:
    samples: Sequence[Sample]
    caption: str
    kind: ClassVar[str] = "samples"


Block = Text | Code | Items | Table | Plot | Figure | Maps | Samples


@dataclass(frozen=True)
class Section:
    """`brief` sections are shown on the terminal, too."""

    title: str
    blocks: Sequence[Block]
    anchor: str = ""
    brief: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "anchor", slug(self.anchor or self.title))


@dataclass(frozen=True)
class Document:
    """`opening` stands between the lead and the first section."""

    title: str
    lead: str
    sections: Sequence[Section] = ()
    footer: str = ""
    opening: Sequence[Block] = ()

    @property
    def blocks(self) -> list[Block]:
        return [*self.opening, *(block for section in self.sections for block in section.blocks)]

    @property
    def plots(self) -> list[Plot]:
        return [block for block in self.blocks if isinstance(block, Plot)]


COLOURS = 8  # of the palette
# A mechanism keeps its colour from page to page.
_OWN = {"cosformer": 0, "softmax": 1, "relu": 2, "linear": 3}


def colour_of(mechanism: str, others: Sequence[str] = ()) -> int:
    """Numbers from COLOURS on are the same colours again, for lines that are dashed or dotted."""
    if mechanism in _OWN:
        return _OWN[mechanism]
    rest = [name for name in others if name not in _OWN]
    lap, place = divmod(rest.index(mechanism) if mechanism in rest else 0, COLOURS - len(_OWN))
    return COLOURS * lap + len(_OWN) + place
