"""One line that says how far something is, and nothing about what is done at once."""

import time

from cosformer.terminal import Progress
from cosformer.training.progress import Bar


def test_a_line_now_and_then(capsys):
    progress = Progress(every=0.01)
    progress.start(4)
    for i in range(4):
        time.sleep(0.02)
        progress.step(f"part {i}")
    progress.end()
    said = capsys.readouterr().err
    assert "part 1" in said
    assert " 50% " in said
    assert " left " in said


def test_what_is_done_at_once_is_not_shown(capsys):
    progress = Progress(every=60.0)
    progress.start(1000)
    progress.step("a jump", 900)
    progress.step("the next")
    assert progress.bar.n == 901
    progress.end()
    assert capsys.readouterr().err == ""


def test_the_bar_of_a_run_shows_at_once_and_stays(capsys):
    bar = Bar("listops · cosformer")
    bar({"step": 2, "steps": 10})
    assert "listops · cosformer:  20%" in capsys.readouterr().err
    bar({"step": 10, "steps": 10, "done": True, "accuracy": 0.5})
    said = capsys.readouterr().err
    assert "10/10" in said
    assert "accuracy=0.5" in said
    assert said.endswith("\n")
