"""What both GPU backends need is in ops/gpu: neither imports the other."""

import ast
from pathlib import Path

import pytest

import cosformer.ops

OPS = Path(cosformer.ops.__file__).parent


def imported(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


@pytest.mark.parametrize(("backend", "other"), [("triton", "hopper"), ("hopper", "triton")])
def test_neither_backend_imports_the_other(backend, other):
    files = sorted((OPS / backend).glob("*.py"))
    assert len(files) > 10
    for path in files:
        assert not [name for name in imported(path) if name.startswith(f"cosformer.ops.{other}")], path.name
