"""The note beside saved weights that tells somebody who knows transformers alone how to read them."""

from pathlib import Path

NAME = "README.md"
NOTE = """---
library_name: cosformer
---

# {architecture}

A model of the Python package cosformer, on Hugging Face conventions. It needs that package, and no code from
this folder:

    pip install "cosformer[models]"

In Python, `import cosformer` first; transformers' Auto classes and pipelines then know the architecture.
Other people's programs are started with it: `cosformer run -- lm_eval ...`.
"""


def write_note(folder: Path, architecture: str) -> None:
    """Writes the note, unless the folder has one; where it is no folder of this machine, nothing."""
    if folder.is_dir() and not (folder / NAME).exists():
        (folder / NAME).write_text(NOTE.format(architecture=architecture), encoding="utf-8")
