"""Fetches the tests that transformers' source distribution holds, of the installed version: `python -m
tests.models.mixins.fetch`, a step of `make oracles`. They are unpacked under build/, and are no part of this
project."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import transformers

VERSION = transformers.__version__
FOLDER = Path(__file__).parents[3] / "build" / "transformers-tests" / VERSION
WHY_NOT = FOLDER / "why_not.txt"  # written where they could not be had


def fetch() -> None:
    if (FOLDER / "test_modeling_common.py").is_file():
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    WHY_NOT.unlink(missing_ok=True)
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--no-build-isolation", "--no-binary", ":all:", "--dest", str(FOLDER / "archive"),
        f"transformers=={VERSION}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    archives = list((FOLDER / "archive").glob("*.tar.gz"))
    if done.returncode != 0 or not archives:
        said = done.stderr.strip().splitlines()
        WHY_NOT.write_text(f"pip could not download it ({said[-1] if said else 'without a word'})")
        print(
            f"The tests of transformers {VERSION} were not fetched: {WHY_NOT.read_text()}.", file=sys.stderr
        )
        return
    with tarfile.open(archives[0]) as archive:
        for member in archive.getmembers():
            parts = Path(member.name).parts
            if member.isfile() and parts[1:2] == ("tests",) and len(parts) == 3:
                found = archive.extractfile(member)
                assert found is not None
                (FOLDER / parts[2]).write_bytes(found.read())
    shutil.rmtree(FOLDER / "archive")
    if not (FOLDER / "test_modeling_common.py").is_file():
        WHY_NOT.write_text("its source distribution holds no tests/test_modeling_common.py")


if __name__ == "__main__":
    fetch()
