import gc

import pytest


@pytest.fixture(scope="session", autouse=True)
def _frozen():
    """The Trainer collects garbage at every start, and these tests start it many times: what was imported
    need not be searched each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
