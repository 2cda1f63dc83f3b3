"""The report of the generated tasks, from their record alone: what was published beside what is ours."""

from typing import Any

from benchmarks.terminal import markdown

_TITLES = {
    "listops": "ListOps", "pathfinder": "Pathfinder", "pathx": "Path-X", "mqar": "Associative recall",
    "copy": "Copy",
}  # fmt: skip


def to_markdown(data: dict[str, Any]) -> str:
    found, hardware = data["tasks"], data["hardware"]
    parts = [
        "# The generated tasks",
        f"`{data['command']}`, {data['date'][:10]}, on {hardware['cpu']}, {hardware['cores']} cores; Python "
        f"{data['versions']['python']}, NumPy {data['versions']['numpy']}; commit {_commit(data)}."
        + ("" if data["share"] == 1 else f" At {data['share']:g} of the published sizes."),
        "## Time",
        markdown(
            (
                "task",
                "train / valid / test",
                "cores",
                "seconds",
                "rows a second",
                "others' share of the cores",
            ),
            [[_TITLES[name], *_time(task)] for name, task in found.items()],
        ),
        *_listops(found["listops"]),
    ]
    for name in ("pathfinder", "pathx"):
        if name in found:
            parts += _pictures(_TITLES[name], found[name])
    return "\n\n".join(parts) + "\n"


def _commit(data: dict[str, Any]) -> str:
    commit = data["commit"]
    return f"{(commit['id'] or 'unknown')[:10]}{' with changes' if commit['dirty'] else ''}"


def _time(task: dict[str, Any]) -> list[str]:
    rows, share = task["rows"].values(), task["others_share"]
    return [
        " / ".join(f"{n:,}" for n in rows), str(task["cores"]), f"{task['seconds']:.1f}",
        f"{sum(rows) / max(task['seconds'], 0.1):,.0f}", "unknown" if share is None else f"{share:.0%}",
    ]  # fmt: skip


def _listops(task: dict[str, Any]) -> list[str]:
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
    return [
        "## ListOps",
        f"An independent evaluator, which descends into the text, read {judged['labels']:,} trees of the "
        f"published size and denies {judged['denied']:,} labels.",
        "Published are the rules: depth at most 10, an operator with probability 0.25 and 2 to 10 arguments, "
        "more than 500 and less than 2,000 symbols, 96,000 / 2,000 / 2,000 distinct trees, ten classes. What "
        f"follows from them is shown by {theirs['trees']:,} trees ({theirs['grown']:,} grown) of a second "
        f"generator, which follows them node by node; a tenth of so few has a standard error of {error:.2%}.",
        markdown(("label", *header[1:]), beside("label shares", list("0123456789"), share=True)),
        markdown(
            ("length", *header[1:]),
            beside("length deciles", [f"{p} %" for p in range(0, 101, 10)], share=False),
        ),
        markdown(("depth", *header[1:]), beside("depth shares", depths, share=True)),
    ]


def _pictures(title: str, task: dict[str, Any]) -> list[str]:
    rows = [
        [
            split, f"{task['rows'][split]:,}", f"{own['share of label 1']:.2%}",
            " / ".join(f"{x:.2f}" for x in own["mean light, label 0 and 1"]),
        ]
        for split, own in task["splits"].items()
    ]  # fmt: skip
    return [
        f"## {title}",
        "Published: 160,000 / 20,000 / 20,000 pictures, each label with probability 1/2, both with the same "
        "statistics but for the connection. Light is the mean of a picture's pixels, 0 to 255.",
        markdown(("split", "pictures", "label 1", "mean light, label 0 / 1"), rows),
        f"SHA-256 of pictures and labels, the same on any number of cores: `{task['sha256']}`.",
    ]
