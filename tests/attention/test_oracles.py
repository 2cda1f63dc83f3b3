"""Agreement with implementations of other people, where a package has one: `make oracles` runs these."""

import json

import pytest

from cosformer import attention
from tests.attention import oracles

FOUND = oracles.comparisons()


@pytest.mark.oracle
@pytest.mark.parametrize("name", FOUND)
def test_agrees(name, capsys):
    module = FOUND[name]
    if oracles.version(module) is None:
        pytest.skip(f"{module.PACKAGE} is not installed")
    found = oracles.errors(module)
    assert found
    with capsys.disabled():
        for what, error in found:
            print(f"\n{module.MECHANISM} against {module.PACKAGE}, {what}: {error:.1e}", end="")
    for what, error in found:
        assert error < getattr(module, "TOLERANCE", 1e-5), what


@pytest.mark.parametrize("name", FOUND)
def test_the_agreement_is_recorded(name):
    record = json.loads(oracles.RECORD.read_text())[name]
    assert record["mechanism"] == FOUND[name].MECHANISM
    assert record["mechanism"] in attention.names()
    assert record["error"] < getattr(FOUND[name], "TOLERANCE", 1e-5)
