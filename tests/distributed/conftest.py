import pytest

from tests.distributed.workers import Workers


@pytest.fixture(scope="session")
def workers(tmp_path_factory):
    made = Workers(tmp_path_factory.mktemp("workers"))
    yield made
    made.close()
