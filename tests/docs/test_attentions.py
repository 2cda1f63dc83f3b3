"""The documentation of attentions is what the code says: the table is current, the worked example works."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "adding_an_attention.md").read_text()
MECHANISM, TRANSCRIPTION = re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)

# The example as it stands, and with mistakes: name, what is replaced by what, the law that must notice.
MISTAKES = [
    ("taylor_three", "/ 2**0.5", "/ 3**0.5", "test_equals_its_transcription"),
    ("taylor_short", "1 + head_dim + head_dim**2", "head_dim + head_dim**2", "test_state_size"),
    ("taylor_deaf", "self.temperature = ", "self.temperature = 1.0; ", "test_parameters_make"),
]  # fmt: skip

# As if the two files of the guide lay where it says, in a process of their own.
PROGRAM = """
import json, sys, types
import pytest

transcription, mechanisms = sys.argv[1], json.loads(sys.argv[2])
for name, code in mechanisms.items():
    for path, text in ((name, code), ("tests.attention.transcriptions." + name, transcription)):
        sys.modules[path] = module = types.ModuleType(path)
        exec(compile(text, path, "exec"), vars(module))
quietly = ["-n", "0", "-q", "-p", "no:cacheprovider"]
sys.exit(pytest.main([*quietly, "tests/attention/test_laws.py", "-k", "taylor"]))
"""


def test_the_table_is_current():
    render = runpy.run_path(str(ROOT / "docs" / "render_attentions.py"))["render"]
    assert (ROOT / "docs" / "attentions.md").read_text() == render(), "run python docs/render_attentions.py"


def test_the_example_is_short():
    assert len((MECHANISM + TRANSCRIPTION).splitlines()) <= 60


@pytest.mark.thorough
def test_the_example_is_under_all_laws_and_they_notice_its_mistakes():
    mechanisms = {"taylor": MECHANISM}
    for name, right, wrong, _ in MISTAKES:
        assert right in MECHANISM
        mechanisms[name] = MECHANISM.replace(right, wrong).replace('"taylor"', f'"{name}"')
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, TRANSCRIPTION, json.dumps(mechanisms)],
        cwd=ROOT, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    failed = re.findall(
        r"^FAILED tests/attention/test_laws.py::(\w+)\[\S*?(taylor\w*)", done.stdout, re.MULTILINE
    )
    assert {name for _, name in failed} == {name for name, *_ in MISTAKES}, done.stdout[-3000:]
    for name, _, _, law in MISTAKES:
        assert any(test.startswith(law) for test, of in failed if of == name), (name, law)
    (passed,) = re.findall(r"(\d+) passed", done.stdout)
    laws = re.findall(r"^def test_", (ROOT / "tests/attention/test_laws.py").read_text(), re.MULTILINE)
    assert int(passed) > len(mechanisms) * len(laws)
