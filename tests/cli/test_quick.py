"""Answers that need no model come before PyTorch is imported: within a second."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
# Each is a command line, and the exit code.
PROGRAM = """
import io, sys
from contextlib import redirect_stderr, redirect_stdout
from cosformer.cli import main
for words, wanted in LINES:
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        try:
            code = main(words.split())
        except SystemExit as left:
            code = left.code
    assert code == wanted, (words, code, said.getvalue())
    heavy = [name for name in ("torch", "numpy", "transformers") if name in sys.modules]
    assert not heavy, (words, heavy)
"""
LINES = [
    ("--help", 0), ("--version", 0), ("", 0), ("trian", 2), ("info --help", 0), ("train --help", 0),
    ("demo --help", 0), ("generate --help", 0), ("eval --help", 0), ("compare --help", 0), ("data --help", 0),
    ("serve --help", 0), ("serve nowhere", 2), ("serve nowhere --port 65536", 2),
    ("report --help", 0), ("bench --help", 0), ("info --chek", 2), ("generate", 2), ("generate nowhere", 2),
    ("run --help", 0), ("run", 2),
    ("generate nowhere --tokens 0", 2), ("generate nowhere --dtype float23", 2), ("eval nowhere", 2),
    ("train", 2), ("train mqra", 2), ("train nowhere.py", 2), ("train mqar --scale huge", 2),
    ("train mqar steps", 2), ("train mqar optimiser.lr=3", 2), ("compare mqra", 2), ("demo --seconds 0", 2),
    ("report --results nowhere --benchmarks nowhere", 2), ("bench oprator", 2), ("data --fetch", 2),
]  # fmt: skip


def test_nothing_heavy_is_imported_for_an_answer(tmp_path):
    program = PROGRAM.replace("LINES", repr(LINES))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("redirected", ["| cat", ">&-"])
def test_output_that_takes_no_or_few_characters(redirected, tmp_path):
    """A terminal in ASCII gets question marks; a closed output is no error."""
    program = (
        "import sys; from cosformer.cli import main, info; info.run = lambda _: print('\u00e9') or 0; main()"
    )
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        ["sh", "-c", f"'{sys.executable}' program.py info {redirected}"],
        cwd=tmp_path, env=ENVIRONMENT | {"PYTHONIOENCODING": "ascii"}, capture_output=True,
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr) == (b"?" if redirected == "| cat" else b"", b"")


@pytest.mark.parametrize("words", [["--help"], ["generate", "nowhere"]])
def test_within_a_second(words, tmp_path):
    took = []
    for _ in range(3):  # the machine may be busy
        began = time.perf_counter()
        command = [sys.executable, "-m", "cosformer", *words]
        subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, check=False)
        took.append(time.perf_counter() - began)
        if took[-1] < 1:
            break
    assert min(took) < 1


def test_info_says_what_it_knows_at_once(tmp_path):
    """Versions stand there before PyTorch, which is asked for devices, is imported."""
    program = "import cosformer.cli, sys; sys.modules['torch'] = None; cosformer.cli.main(['info'])"
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    said, _ = process.communicate(timeout=60)
    assert said.startswith("Versions\n  cosformer")
    assert "torch" in said


def test_ctrl_c_while_modules_are_imported_is_a_word(tmp_path):
    """The signal comes from within an import, as it does when somebody is impatient."""
    (tmp_path / "torch.py").write_text(
        # Where tests run in the background, the signal may be ignored to begin with.
        "import os, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "os.kill(os.getpid(), signal.SIGINT)\nwhile True: pass\n"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-m", "cosformer", "train", "mqar"],
        cwd=tmp_path, env={**ENVIRONMENT, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 130
    assert done.stderr == "cosformer train: Stopped.\n"


@pytest.mark.parametrize("caught", ["except BaseException: pass", "except ZeroDivisionError: pass"])
def test_an_import_cannot_lose_ctrl_c(caught, tmp_path):
    """Modules that catch everything, and go on."""
    sent = "    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(60)\n"
    (tmp_path / "torch.py").write_text(f"import os, signal, time\ntry:\n{sent}{caught}\n")
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from cosformer.cli import main; sys.exit(main(['train', 'mqar']))"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env={**ENVIRONMENT, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "cosformer train: Stopped.\n")


def test_the_package_is_imported_as_it_is_needed():
    program = (
        "import sys, cosformer; assert 'torch' not in sys.modules; assert 'attention' in dir(cosformer)\n"
        "from cosformer import cosformer_attention, CosformerAttention; assert 'torch' in sys.modules\n"
        "assert cosformer.backends()[0].name and cosformer.positions.names()\n"
        "assert cosformer.attention.names()\n"
        "try: cosformer.nothing\n"
        "except AttributeError as error: assert 'nothing' in str(error)\n"
        "else: raise SystemExit('an attribute from nowhere')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
