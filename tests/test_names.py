"""Every name of the project that its tests, benchmarks and examples import exists. Tests that need a GPU, or
data, are skipped elsewhere: nothing else would see there that a module they import has moved."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OWN = ("cosformer", "tests", "benchmarks")


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks", "examples", "docs"])
def test_imports(folder):
    pytest.importorskip(
        "triton", reason="the package triton is not installed (there is none for this platform)"
    )
    missing = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in OWN:
                missing += [f"{path}:{node.lineno}: {name}" for name in lacking(node)]
    assert not missing


def lacking(node: ast.ImportFrom) -> list[str]:
    module = found(str(node.module))
    if module is None:
        return [str(node.module)]
    return [x.name for x in node.names if not (hasattr(module, x.name) or found(f"{node.module}.{x.name}"))]


def found(name: str) -> object | None:
    """A module; None if there is none. One that asks for a package that is not installed is there."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        return None if str(error.name).split(".")[0] in OWN else _Anything()


class _Anything:
    def __getattr__(self, name: str) -> None:
        return None
