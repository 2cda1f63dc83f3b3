"""The generated tasks: how long generating takes, and their statistics beside published ones."""

from cosformer.report.document import Block, Document, Section, Table, Text
from cosformer.report.sections.common import Record, hardware_words, source
from cosformer.terminal import seconds

_TITLES = {
    "listops": "ListOps", "pathfinder": "Pathfinder", "pathx": "Path-X", "mqar": "Associative recall",
    "copy": "Copy",
}  # fmt: skip


def section(record: Record) -> Section:
    """For the page."""
    rows = [
        [name, " / ".join(f"{n:,}" for n in t["rows"].values()), str(t["cores"]), seconds(t["seconds"])]
        for name, t in record["tasks"].items()
    ]
    judged = record["tasks"]["listops"]["judged"]
    note = (
        f"At {record['share']:.0%} of the published sizes. An independent evaluator denies "
        f"{judged['denied']:,} of {judged['labels']:,} labels of ListOps; distributions beside the published "
        "ones are in the full report."
    )
    table = Table(["task", "train / valid / test", "cores", "time"], rows, note)
    return Section(f"Generated tasks: {hardware_words(record)}", [table, source(record)], "tasks")


def document(data: Record) -> Document:
    """Everything, beside the record."""
    found, hardware, commit = data["tasks"], data["hardware"], data["commit"]
    words = f"{(commit['id'] or 'unknown')[:10]}{' with changes' if commit['dirty'] else ''}"
    lead = (
        f"`{data['command']}`, {data['date'][:10]}, on {hardware['cpu']}, {hardware['cores']} cores; Python "
        f"{data['versions']['python']}, NumPy {data['versions']['numpy']}; commit {words}."
    )
    lead += "" if data["share"] == 1 else f" At {data['share']:g} of the published sizes."
    header = (
        "task",
        "train / valid / test",
        "cores",
        "seconds",
        "rows a second",
        "others' share of the cores",
    )
    times = Table(header, [[_TITLES[name], *_time(task)] for name, task in found.items()])
    drawn = [_pictures(_TITLES[name], found[name]) for name in ("pathfinder", "pathx") if name in found]
    parts = [Section("Time", [times]), Section("ListOps", _listops(found["listops"])), *drawn]
    return Document("The generated tasks", lead, parts)


def _time(task: Record) -> list[str]:
    rows, share = task["rows"].values(), task["others_share"]
    return [
        " / ".join(f"{n:,}" for n in rows), str(task["cores"]), f"{task['seconds']:.1f}",
        f"{sum(rows) / max(task['seconds'], 0.1):,.0f}", "unknown" if share is None else f"{share:.0%}",
    ]  # fmt: skip


def _listops(task: Record) -> list[Block]:
    ours, theirs, judged = task["distributions"], task["published rules"], task["judged"]
    header = ("", "ours", "the published rules, node by node")

    def beside(key: str, labels: list[str], *, share: bool) -> list[list[str]]:
        own, other = ours[key], theirs[key]
        if isinstance(own, list):
            own, other = dict(zip(labels, own, strict=True)), dict(zip(labels, other, strict=True))
        spec = ".2%" if share else ",d"
        return [[n, format(own.get(n, 0), spec), format(other.get(n, 0), spec)] for n in labels]

    depths = sorted({*ours["depth shares"], *theirs["depth shares"]}, key=int)
    error = (0.1 * 0.9 / theirs["trees"]) ** 0.5
    judgement = (
        f"An independent evaluator, which descends into the text, read {judged['labels']:,} trees of the "
        f"published size and denies {judged['denied']:,} labels."
    )
    rules = (
        "Published are the rules: depth at most 10, an operator with probability 0.25 and 2 to 10 arguments, "
        "more than 500 and less than 2,000 symbols, 96,000 / 2,000 / 2,000 distinct trees, ten classes. What "
        f"follows from them is shown by {theirs['trees']:,} trees ({theirs['grown']:,} grown) of a second "
        f"generator, which follows them node by node; a tenth of so few has a standard error of {error:.2%}."
    )
    return [
        Text(judgement),
        Text(rules),
        Table(("label", *header[1:]), beside("label shares", list("0123456789"), share=True)),
        Table(
            ("length", *header[1:]),
            beside("length deciles", [f"{p} %" for p in range(0, 101, 10)], share=False),
        ),
        Table(("depth", *header[1:]), beside("depth shares", depths, share=True)),
    ]


def _pictures(title: str, task: Record) -> Section:
    rows = [
        [
            split, f"{task['rows'][split]:,}", f"{own['share of label 1']:.2%}",
            " / ".join(f"{x:.2f}" for x in own["mean light, label 0 and 1"]),
        ]
        for split, own in task["splits"].items()
    ]  # fmt: skip
    said = (
        "Published: 160,000 / 20,000 / 20,000 pictures, each label with probability 1/2, both with the same "
        "statistics but for the connection. Light is the mean of a picture's pixels, 0 to 255."
    )
    same = f"SHA-256 of pictures and labels, the same on any number of cores: `{task['sha256']}`."
    table = Table(("split", "pictures", "label 1", "mean light, label 0 / 1"), rows)
    return Section(title, [Text(said), table, Text(same)])
