"""Every test starts from the same seed, on one thread, and with uninitialised memory full of NaN:
what is not written is not silently zero."""

import os

import pytest
import torch

from tests.interpreter import patch_once_a_launch

# Without a GPU the Triton kernels run in Triton's interpreter, which must be chosen before they are
# imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    patch_once_a_launch()

torch.set_num_threads(1)
# The reference multiplies in the inputs' own type, and oneDNN's bfloat16 products die of an illegal
# instruction on virtual machines that announce AMX without allowing it. Nothing else here uses oneDNN.
torch.backends.mkldnn.set_flags(False)


@pytest.fixture(autouse=True)
def _same_start():
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


def pytest_ignore_collect(collection_path, config):
    """transformers' own tests take seconds to be collected: only where they are wanted."""
    if collection_path.name == "test_mixins.py" and "not oracle" in config.getoption("markexpr"):
        return True
    return None
