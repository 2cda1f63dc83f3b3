"""Errors of the command line: each is one sentence, never a traceback."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile


class UsageError(Exception):
    """An error that the user can correct: one sentence, exit code 2."""


class Stopped(Exception):
    """Ctrl-C: what was kept, and the command that continues from there; exit code 130."""


def about(error: OSError) -> str:
    """The sentence for an error of the operating system."""
    where = f" ({error.filename})" if error.filename else ""
    if full_disk(error):
        return f"the disk is full{where}: free some space and run the command again; {KEPT}."
    if error.errno == errno.EROFS:
        return f"the file system is read-only{where}: choose another folder; {KEPT}."
    return f"{_reason(error)}{where}."


def full_disk(error: BaseException | None) -> bool:
    """Whether the error, or one that caused it, says that the disk is full, or that the limit of the process
    (`ulimit -f`) was reached; libraries say so in different words."""
    while error is not None:
        if getattr(error, "errno", None) in _FULL or re.search(_FULL_WORDS, str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def out_of_memory(error: BaseException) -> bool:
    return (
        isinstance(error, MemoryError) or "out of memory" in str(error) or "not enough memory" in str(error)
    )


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# How such errors read in Rust (safetensors, tokenizers), and in NumPy.
_FULL_WORDS = rf"\(os error ({'|'.join(map(str, _FULL))})\)|\d+ requested and \d+ written"


def _reason(error: OSError) -> str:
    """The message of the system, or of the exception; without a full stop."""
    return error.strerror.lower() if error.strerror else str(error).rstrip(".")


def printable(sentence: str) -> str:
    """In one line and without control characters: names of files may contain any."""
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in sentence.strip())
    return "".join(shown)


def capitalised(sentence: str) -> str:
    """With a capital letter, unless the first word is a path, an option or the name of a setting."""
    word = sentence.partition(" ")[0].rstrip(",:;.")
    return sentence[:1].upper() + sentence[1:] if word.isalpha() and not os.path.exists(word) else sentence


@contextmanager
def needs_models() -> Iterator[None]:
    """For imports of the models: names a missing package and how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "cosformer":
            raise
        raise UsageError(
            f'the package {error.name} is missing: pip install ".[models]" in a clone of cosformer.'
        ) from None


KEPT = "results finished before are complete, for files are replaced only by finished ones"


def readable_file(option: str, path: Path) -> Path:
    if path.is_dir():
        raise UsageError(f"{option} {path} is a folder; a file is expected.")
    if not path.exists():
        raise UsageError(f"{option} {path} does not exist.")
    if not path.is_file():
        raise UsageError(f"{option} {path} is a pipe or a device: write it to a file first.")
    if not os.access(path, os.R_OK):
        raise UsageError(f"{option} {path} may not be read.")
    return path


def writable_folder(option: str, path: Path) -> Path:
    """Created where it is missing, so that an error comes before any work is done."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError(f"{option} {path} is a file; a folder is expected.") from None
    except OSError as error:
        raise UsageError(f"{option} {path} cannot be made: {_reason(error)}.") from None
    try:
        with TemporaryFile(dir=path):  # os.access says yes to an administrator, even of /proc
            pass
    except OSError as error:
        if full_disk(error):
            raise
        raise UsageError(f"{option} {path} may not be written to.") from None
    return path


def writable_file(option: str, path: Path) -> Path:
    """A file that can be appended to; its folder is created where it is missing."""
    if path.is_dir():
        raise UsageError(f"{option} {path} is a folder; a file is expected.")
    if path.exists() and not path.is_file():  # a device or a pipe may have no end, or no reader
        raise UsageError(f"{option} {path} is no ordinary file; give another one.")
    writable_folder(f"{option} {path}: the folder", path.parent)
    if path.exists() and not os.access(path, os.W_OK):
        raise UsageError(f"{option} {path} may not be written to.")
    return path
