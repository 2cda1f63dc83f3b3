"""Every example runs as it stands, short as it is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = {
    "train_a_byte_lm": ["--steps", "2", "--length", "64"],
    "classify_long_documents": ["--steps", "2", "--length", "128"],
    "stream_a_long_file": ["--tokens", "100000", "--piece", "8192"],
    "swap_attention_in_bert": [],
}
SAYS = {
    "train_a_byte_lm": "after 2 steps",
    "classify_long_documents": "% right",
    "stream_a_long_file": "100,000 tokens read",
    "swap_attention_in_bert": "BertSelfAttention",
}


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_example(path, tmp_path):
    assert len(path.read_text().splitlines()) <= 40
    done = subprocess.run(
        [sys.executable, str(path), *SMALL[path.stem]],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1",
                          "COSFORMER_CACHE": str(tmp_path / "cache")},
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert SAYS[path.stem] in done.stdout


def test_all_examples_are_named():
    assert {p.stem for p in (ROOT / "examples").glob("*.py")} == set(SMALL)
