"""Every test starts with cosFormer enabled, and with its default settings."""

import pytest

from cosformer.integrations.transformers import enable


@pytest.fixture(autouse=True)
def _enabled():
    enable()
