import gc

import pytest

from cosformer.tasks.registry import _TASKS
from tests.training.toy import Toy


@pytest.fixture(scope="session", autouse=True)
def _frozen():
    """Models are freed by the collector, and these tests make many: what was imported need not be searched
    each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module", autouse=True)
def _toy():
    """The toy is a task like all others, but only here: tests elsewhere enumerate the registry."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(_TASKS._classes, "toy", Toy)
        yield
