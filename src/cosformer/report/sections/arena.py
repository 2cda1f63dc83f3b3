"""The Long Range Arena, from the records of planned runs: Table 4 and what stands beside it."""

from collections.abc import Sequence
from statistics import mean

from cosformer.report.document import Section, Table
from cosformer.report.sections import published
from cosformer.report.sections.places import NOT_RUN, Places, scores
from cosformer.report.sections.planned import (
    OURS,
    ROW_AGAIN,
    ROWS,
    TRIED,
    WINDOWS,
    count_tried,
    how_again,
    only,
    origin,
)  # fmt: skip

# Tasks in the order of the published figures, and the recipes that stand for them.
TASKS = {
    "ListOps": "listops", "Text": "text", "Retrieval (citations)": "citations", "Image": "image",
    "Pathfinder": "pathfinder",
}  # fmt: skip
SMALL = "lra-small"
PLANS = ("lra", "lra-pretrained", SMALL)


def from_scratch(places: Places) -> Section:
    """Table 4."""
    rows = []
    for row in dict.fromkeys((*ROWS, *published.ARENA)):
        figures: list[str] = []
        known = published.ARENA.get(row)
        for number, column in enumerate(TASKS.values()):
            figures += [places.cell("lra", column, row, ".2f", 100), f"{known[number]:.2f}" if known else "-"]
        over_all = average(places, "lra", row)
        told = published.ARENA_AVERAGES.get(row)
        others = [f"{of[row]:.2f}" if row in of else "-" for of in published.ARENA_ELSEWHERE.values()]
        again = only(*_rows_of(row)) if row in ROWS else "-"
        tried = count_tried(places, "lra", TASKS.values(), row)
        rows.append([row, *figures, over_all, f"{told:.2f}" if told else "-", *others, tried, again])
    pairs = [words for task in (*TASKS, "average") for words in (task, "published")]
    elsewhere = (f"average in {name}" for name in published.ARENA_ELSEWHERE)
    header = ["attention", *pairs, *elsewhere, TRIED, ROW_AGAIN]
    caption = (
        "Accuracy in per cent on the test split; higher is better. Settings of scale small. Learning rate "
        "and positions (learned, rotary or none), with their number of steps, are the best on validation of "
        "the settings tried, which are counted task by task; for Image and Pathfinder the second one has a "
        "convolution over a row of pixels, for Text over five bytes. On Pathfinder models have two layers "
        "of width 64, and so ours has no layer of softmax and is the same model as windows. Our Retrieval is "
        "a stand-in, citations among 7,306 arXiv papers, and does not compare with the published one (AAN). "
        f"Other people's codebases have columns of their own. {how_again('lra')}"
    )
    return Section("Long Range Arena (Table 4)", [Table(header, rows, caption), *origin(places, "lra")])


def _rows_of(row: str) -> tuple[str, ...]:
    """What holds the runs of a row of the arena."""
    return (row, f"pathfinder/{WINDOWS}") if row == OURS else (row,)


def average(places: Places, plan: str, row: str, form: str = ".2f") -> str:
    """Over all tasks of the arena, in per cent, where each was run; of each seed, where all have as many."""
    found = [scores(places.best(plan, column, row)) for column in TASKS.values()]
    if not all(found):
        return NOT_RUN
    over_all = f"{100 * mean(mean(own) for own in found):{form}}"
    if min(map(len, found)) < 2 or len(set(map(len, found))) > 1:
        return over_all
    seeds = [100 * mean(own) for own in zip(*found, strict=True)]
    return f"{over_all} ± {(max(seeds) - min(seeds)) / 2:{form}}"


def small(places: Places, rows: Sequence[str] = ()) -> Section:
    """The same tasks with short inputs, for CPU cores. `rows` stand there, run or not."""
    cells = []
    for row in dict.fromkeys((*rows, *places.rows(SMALL))):
        if row == OURS:  # with two layers it is windows
            continue
        own = [places.cell(SMALL, column, row, ".1f", 100) for column in TASKS.values()]
        seeds = ", ".join(str(len(places.best(SMALL, column, row))) for column in TASKS.values())
        tried = count_tried(places, SMALL, TASKS.values(), row)
        cells.append([row, *own, average(places, SMALL, row, ".1f"), seeds, tried, only(row)])
    caption = (
        "Accuracy in per cent on the test split; higher is better; the mean of the seeds, and half of their "
        "range. 2 layers of width 64 with 4 heads, on a CPU, 600 to 1,000 steps of 32 or 64 rows; the better "
        "on validation of two learning rates. ListOps has at most 100 tokens, Text its first 256 bytes, each "
        "paper of a pair its first 128 byte pairs, Image 16 x 16 and Pathfinder 8 x 8 pixels. Positions are "
        "the same for all rows of a task: rotary ones for texts, else learned ones. Windows are 2, 8, 128 "
        "and 1,024, with a gate and norms and a narrower feed-forward: of the cosine in the row windows, cut "
        f"off at W under ReLU and softmax. {how_again(SMALL)}"
    )
    header = ["attention", *TASKS, "average", "seeds", TRIED, ROW_AGAIN]
    return Section("The arena in small", [Table(header, cells, caption), *origin(places, SMALL)])


def pretrained(places: Places) -> Section:
    """Table 4 where each model was pretrained on the inputs of its task."""
    plan = "lra-pretrained"
    rows = []
    for row in ROWS:
        cells = [places.cell(plan, column, row, ".2f", 100) for column in TASKS.values()]
        rows.append([row, *cells, average(places, plan, row), only(*_rows_of(row))])
    caption = (
        "Accuracy in per cent on the test split; higher is better. Each model has first learned to predict "
        "hidden tokens of the inputs of the same task's training split (Amos et al., 2023), and was then "
        "trained as above; the published figures above are of models that were not, and do not compare. "
        f"{how_again('lra-pretrained')}"
    )
    header = ["attention", *TASKS, "average", ROW_AGAIN]
    return Section(
        "Long Range Arena, pretrained on its own inputs",
        [Table(header, rows, caption), *origin(places, plan)],
    )
