"""Which recipes there are: files of the folder `recipes` of a checkout. Imports nothing heavy, so that a
wrong name is reported at once."""

import difflib
from pathlib import Path

from cosformer.machine import CHECKOUT


def folder() -> Path:
    for root in (CHECKOUT, Path.cwd()):
        if (root / "recipes" / "__init__.py").is_file():
            return root / "recipes"
    raise FileNotFoundError(
        "recipes are not part of the installed package: work in a checkout of the project, or give the path "
        "of a recipe file."
    )


def names() -> list[str]:
    """Of the recipes of this checkout."""
    return sorted(path.stem for path in folder().glob("*.py") if not path.stem.startswith("_"))


def check(name_or_path: str | Path) -> None:
    """Raises where there is no such recipe."""
    path = Path(name_or_path)
    if path.suffix == ".py":
        if not path.is_file():
            raise FileNotFoundError(f"there is no recipe {path}: give the path of a Python file, or a name.")
        return
    known = names()
    if str(name_or_path) not in known:
        near = difflib.get_close_matches(str(name_or_path), known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}."
        raise ValueError(f"there is no recipe {str(name_or_path)!r}; {hint}")
