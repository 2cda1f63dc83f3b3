"""`cosformer run`: somebody else's program sees its own arguments, and leaves its own exit code."""

import sys

import pytest

from cosformer.cli import main


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"

    def write(text):
        path.write_text(text)
        return str(path)

    return write


def test_a_file_runs_as_python_would_run_it(program, capsys, tmp_path):
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    path = program(
        "import sys, cosformer, beside\n"
        "print(__name__, sys.argv[1:], beside.NAME, 'cosformer' in sys.modules)\n"
    )
    before = list(sys.argv)
    assert main(["run", "--", path, "--model", "x", "--", "-h"]) == 0
    assert capsys.readouterr().out == "__main__ ['--model', 'x', '--', '-h'] beside True\n"
    assert sys.argv == before


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('no')", 1, "no\n"),
        ("raise SystemExit", 0, ""),
        (
            "open('/nowhere/at/all')",
            1,
            "FileNotFoundError",
        ),  # told by its traceback, not as a mistake of ours
    ],
)
def test_the_exit_code_is_the_programs(text, code, said, program, capsys):
    assert main(["run", "--", program(text)]) == code
    assert said in capsys.readouterr().err


def test_a_module(capsys):
    assert main(["run", "--", "-m", "calendar", "2022", "2"]) == 0
    assert "February 2022" in capsys.readouterr().out


@pytest.mark.parametrize("before", [[], ["python"], ["python3"], [sys.executable]], ids=str)
def test_what_python_itself_would_run(before, program, capsys):
    code = "import sys\nx = [1]\ndef f(): return x + sys.argv[1:]\nprint(__name__, f())"
    assert main(["run", "--", *before, "-c", code, "--a", "b"]) == 0
    assert capsys.readouterr().out == "__main__ [1, '--a', 'b']\n"
    assert main(["run", "--", *before, program("import sys; print(sys.argv[1:])"), "--a"]) == 0
    assert main(["run", "--", *before, "-m", "calendar", "2022", "2"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("['--a']\n")
    assert "February 2022" in said
    assert main(["run", "--", *before, "-c", "1 +"]) == 1
    assert "SyntaxError" in capsys.readouterr().err


def test_the_command_of_a_package(capsys):
    """Without -- too, where the program's name comes first."""
    assert main(["run", "--", "tqdm", "--version"]) == 0
    assert main(["run", "tqdm", "--version"]) == 0
    assert len(set(capsys.readouterr().out.split())) == 1
