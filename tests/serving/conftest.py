"""A small saved model, and a server of it in a process of its own, once for all tests that ask one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cosformer.models import CosformerConfig, CosformerForCausalLM, byte_tokenizer, token_fields

ROOT = Path(__file__).parents[2]
LONGEST = 30_000  # a text that takes a minute: whoever waits for one has not been let go


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "small"
    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    config = CosformerConfig.paper(
        **token_fields(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=LONGEST, position="rotary", initializer_range=0.25,
    )  # fmt: skip
    model = CosformerForCausalLM(config)
    model.lm_head.weight.data[127:] *= 0.6  # some of what it says is text, some only bytes
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def address(saved):
    """Of a server with four places."""
    command = [sys.executable, "-m", "cosformer", "serve", str(saved), "--port", "0", "--batch_size", "4"]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    said = process.stdout.readline()
    if not said.startswith("small is served on http://127.0.0.1:"):
        process.kill()
        raise RuntimeError(f"{said}\n{process.communicate()[1]}")
    yield said.split("http://")[1].split("/v1")[0]
    assert process.poll() is None, "the server has lived through all tests"
    process.terminate()
    _, errors = process.communicate(timeout=30)
    assert "Traceback" not in errors, errors
