"""The README beside saved weights that says how to load them."""

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
    """Writes the README, unless the folder has one; does nothing where it is no local folder."""
    if folder.is_dir() and not (folder / NAME).exists():
        (folder / NAME).write_text(NOTE.format(architecture=architecture), encoding="utf-8")
