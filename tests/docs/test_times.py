"""The times of windows that docs/performance.md gives are those of the records."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_times_of_windows_are_those_of_the_record():
    reports = ROOT / "benchmarks" / "reports"
    newest, beside, of_128, portable, flex = (
        json.loads((reports / f"windows-cuda-{day}.json").read_text())
        for day in ("20261118-3", "20261118-2", "20261118", "20261117", "20261116")
    )
    text = (ROOT / "docs" / "performance.md").read_text()
    table = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    wide = "heads of 128: "
    for row, contender, record, dim in (
        ("windows 2, 4,", "windows", newest, 64),
        ("the same, `backend", "windows[triton]", portable, 64),
        ("all heads W = 1,024", "window 1024", beside, 64),
        ("all heads W = 4,096", "window 4096", beside, 64),
        ("no windows", "plain", newest, 64),
        ("cuDNN", "softmax", beside, 64),
        ("Flex", "flex", flex, 64),
        (f"{wide}windows", "windows", of_128, 128),
        (f"{wide}all heads W = 1,024", "window 1024", of_128, 128),
        (f"{wide}no windows", "plain", of_128, 128),
        (f"{wide}cuDNN", "softmax", of_128, 128),
    ):
        cells = next(line[1:] for line in table if line[0].startswith(f"| {row}"))
        for cell, (mode, phase) in zip(
            cells,
            [(m, p) for m in ("causal", "bidirectional") for p in ("forward", "forward+backward")],
            strict=True,
        ):
            times = [
                r["median_s"] * 1000
                for r in record["timings"]
                if (r["contender"], r["mode"], r["phase"], r["dim"]) == (contender, mode, phase, dim)
                and "median_s" in r
            ]
            shown = cell.strip(" |").split("–")
            for time, said in zip((min(times), max(times)), shown, strict=True):
                assert said == f"{time:.{len(said.partition('.')[2])}f}", (row, mode, phase)
    early, late, many, _ = (d["median_s"] / d["floor_s"] for d in newest["decoding"])
    assert f"takes {early:.2f} times at position 1,000 and {late:.2f} at 1,000,000" in text
    assert f"with 512 rows {many:.2f}." in text
    causal, both = (1e3 * newest["host"][mode] for mode in ("causal", "bidirectional"))
    assert f"{causal:.3f} ms for a short causal call and {both:.3f} for a bidirectional one" in text
    assert f"Two earlier records have {1e3 * beside['host']['causal']:.3f} and 0.11 for the causal" in text


def test_the_times_of_windows_on_a_cpu_are_those_of_the_record():
    record = json.loads((ROOT / "benchmarks" / "reports" / "windows-cpu-20261119.json").read_text())
    text = (ROOT / "docs" / "performance.md").read_text()

    def took(contender, length, mode="causal"):
        return next(
            r["median_s"] for r in record["timings"]
            if (r["contender"], r["length"], r["mode"]) == (contender, length, mode)
            and r["phase"] == "forward+backward"
        )  # fmt: skip

    ms = {(c, t): f"{1e3 * took(c, t):.3g} ms" for c in ("windows", "plain", "softmax") for t in (512, 4096)}
    windows, plain, softmax = (ms[c, 4096] for c in ("windows", "plain", "softmax"))
    said = f"takes {windows}; without windows it takes {plain} and softmax (SDPA) {softmax}; "
    assert said + f"at T = 512 it takes {ms['windows', 512]} and softmax {ms['softmax', 512]}." in text
    narrow, wide = (f"{took(f'window {w}', 16384):.2f} s" for w in (512, 8192))
    assert f"W = 512 in every head a pass takes {narrow} at T = 16,384, with W = 8,192 {wide}" in text
    causal, both, plain = (
        f"{1e3 * took(name, 4096, mode):.3g} ms"
        for name, mode in (
            ("window 8192", "causal"), ("window 8192", "bidirectional"), ("plain", "bidirectional"),
        )
    )  # fmt: skip
    said = f"W = 8,192 in every head a pass takes {causal} at T = 4,096, bidirectional {both}, "
    assert f"{said}where the operator without windows takes {plain}." in text
    early, late = (d["median_s"] for d in record["decoding"])
    said = f"takes {1e3 * early:.2f} ms at position 1,000 and {1e3 * late:.2f} ms at 1,000,000"
    assert f"Decoding one token with these windows {said}." in text
    assert late <= 1.1 * early
