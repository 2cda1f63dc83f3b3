"""One line that says how far something is, and nothing about what is done at once."""

import time

from cosformer.terminal import Progress


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
