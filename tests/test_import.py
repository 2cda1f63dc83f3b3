"""`import cosformer` brings torch and nothing heavier, and does no work."""

import json
import subprocess
import sys
from pathlib import Path

import cosformer

SOURCE = Path(cosformer.__file__).parents[1]
HEAVY = ("triton", "transformers", "matplotlib", "accelerate", "datasets", "tokenizers", "pandas", "scipy")
# A finder at the front sees every attempt: also that of a package which is not installed here.
PROGRAM = """
import importlib.abc, json, sys

tried = []
class Watch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        tried.append(name)

import torch
def surroundings():
    return {
        "random": torch.get_rng_state().tolist(),
        "threads": torch.get_num_threads(),
        "dtype": str(torch.get_default_dtype()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cuda": torch.cuda.is_initialized(),
    }

before, loaded = surroundings(), set(sys.modules)
sys.meta_path.insert(0, Watch())
import cosformer
for name in cosformer.__all__:
    getattr(cosformer, name)
same = surroundings() == before
print(json.dumps({"tried": tried, "loaded": sorted(set(sys.modules) - loaded), "same": same}))
"""


def imported():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True, text=True, check=False, timeout=120, env={"PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_import_is_light():
    found = imported()
    assert "cosformer" in found["tried"]
    packages = {name.partition(".")[0] for name in found["tried"] + found["loaded"]}
    assert not packages & set(HEAVY)
    foreign = packages - {"cosformer", "torch"} - sys.stdlib_module_names
    assert not foreign, "import cosformer needs more than torch"
    assert found["same"], "import cosformer changed torch's settings, drew random numbers or woke a device"


def test_what_windows_lacks_is_asked_for_by_training_alone():
    """As docs/limits.md says."""
    code = """
import sys
sys.modules |= dict.fromkeys(("fcntl", "resource"))
import cosformer.cli, cosformer.record_format, cosformer.reading
sys.exit(cosformer.cli.main(["info"]))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
