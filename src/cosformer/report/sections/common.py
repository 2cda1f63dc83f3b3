"""What the sections of several benchmarks share: the newest record, lines of contenders, where figures come
from."""

from collections.abc import Mapping, Sequence
from typing import Any

from cosformer.report.document import Code, Line, Plot, Section, Table, Text
from cosformer.terminal import size

Record = dict[str, Any]

MODES = ("causal", "bidirectional")
PHASES = ("forward", "forward+backward")
PHASE = PHASES[1]


def latest(records: Sequence[Record], kind: str) -> Record | None:
    """The newest record whose format is this kind and a number."""
    fitting = [r for r in records if r["format"].rpartition(" ")[0] == kind]
    return max(fitting, key=lambda r: str(r.get("date", "")), default=None)


def hardware_words(record: Record) -> str:
    hardware = record.get("hardware", {})
    return hardware.get("gpu") or hardware.get("cpu") or ""


def threads_words(data: Record) -> str:
    """The GPU, or the CPU and how many of its threads were used."""
    hardware, settings = data["hardware"], data["settings"]
    return hardware["gpu"] if "gpu" in hardware else f"{hardware['cpu']} ({settings['threads']} threads)"


def commit_words(commit: Record) -> str:
    """The commit, and whether files differed from it. `by_hand`: the run itself noted another."""
    by_hand = ", put in by hand" if commit.get("by_hand") else ""
    return (commit["id"] or "none") + (", with local changes" if commit["dirty"] else "") + by_hand


def made_words(data: Record) -> str:
    """Versions, commit and date: the last sentence of a short report."""
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    return f"{versions}; commit {commit_words(data['commit'])}; {data['date']}."


def source(record: Record) -> Text:
    """Where the figures of a section come from."""
    versions = ", ".join(f"{name} {v}" for name, v in record["versions"].items())
    how = [record.get("command") and f"`{record['command']}`", record["date"][:10]]
    how.append(record.get("settings", {}).get("dtype"))
    made = f"{', '.join(x for x in how if x)}; {versions}"
    return Text(f"From `{record['stem']}.json`: {made}; commit {(record['commit']['id'] or 'unknown')[:10]}.")


def lines(
    rows: Sequence[Record], known: Mapping[str, tuple[str, int]], y: str, x: str = "length"
) -> list[Line]:
    """Of each contender, by its name and colour, the fields x and y of its rows."""
    found = []
    for contender, (name, colour) in known.items():
        own = [r for r in rows if r["contender"] == contender and r.get(y)]
        if own:
            found.append(Line(name, sorted((float(r[x]), float(r[y])) for r in own), colour))
    return found


def log_plot(name: str, title: str, found: list[Line], says: str, caption: str = "", **how: Any) -> Plot:
    """Against a number of tokens, both axes logarithmic; `says` names the y axis, in seconds or bytes."""
    unit = how.pop("y_unit", "seconds")
    x = how.pop("x_label", "length, tokens")
    return Plot(name, title, x, says, found, caption, x_unit="tokens", y_unit=unit, log_x=True, log_y=True)


def disturbance(data: Record, advice: str = "") -> list[Text]:
    """A warning where other processes used the machine during the measurement; else nothing."""
    share = data.get("others_share") or 0.0
    said = f"**Disturbed run:** other processes took {share:.0%} of the cores while the clock ran.{advice}"
    return [Text(said)] if share >= 0.05 else []


def cell(record: Record | None, field: str, show: Any) -> str:
    """A figure, or why there is none."""
    if record is None:
        return "-"
    return str(show(record[field])) if field in record else str(record["skipped"]).removeprefix("skipped: ")


def settings_section(data: Record) -> Section:
    """Hardware, versions, commit and settings, one a row."""
    rows = [_setting(*item) for part in ("hardware", "versions") for item in data[part].items()]
    rows.append(["commit", commit_words(data["commit"])])
    rows += [_setting(*item) for item in data["settings"].items()]
    if data.get("others_share") is not None:
        rows.append(["cores taken by other processes", f"{data['others_share']:.1%}"])
    rows.append(["date", data["date"]])
    table = Table(("", ""), rows, figures=False)
    return Section("The machine and the settings", [table], brief=False)


def _setting(name: str, value: Any) -> list[str]:
    if name.endswith("_bytes"):
        return [name.removesuffix("_bytes").replace("_", " "), size(value)]
    return [name, ", ".join(map(str, value)) if isinstance(value, list) else str(value)]


def again(data: Record) -> Section:
    return Section("Again", [Code(data["command"])], brief=False)
