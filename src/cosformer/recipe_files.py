"""Which recipes there are: files of the folder `recipes` of a checkout. Imports nothing heavy, so that a
wrong name is reported at once."""

from pathlib import Path

from cosformer.machine import CHECKOUT
from cosformer.registry import meant_or_known


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
        hint = meant_or_known(str(name_or_path), known, "there are")
        raise ValueError(f"there is no recipe {str(name_or_path)!r}; {hint}")
