"""The test under load, on the server of the other tests: it counts what comes, is wrong, or is lost."""

from dataclasses import replace

import pytest

from benchmarks import serving
from benchmarks.terminal import Progress
from cosformer.models import CosformerForCausalLM

for needed in ("fastapi", "openai", "uvicorn"):
    pytest.importorskip(needed, reason='needs the extra "serve"')


@pytest.fixture(scope="module")
def texts(saved):
    found, speed = serving.offline(CosformerForCausalLM.from_pretrained(saved), 6, Progress())
    assert speed["offline_tokens_per_s"] > 0
    return found


def test_every_stream_gets_its_own_texts(address, texts):
    found = serving.load(address, texts, 8, 1.5, Progress())
    assert (found["wrong"], found["lost"]) == (0, 0), found["examples"]
    assert found["requests"] >= 8
    assert found["tokens"] >= 8 * serving.TOKENS[0]
    assert found["first_part"]["repeats"] == found["requests"]


def test_what_is_wrong_or_lost_is_counted(address, texts):
    other = [replace(text, expected=text.expected + "!") for text in texts]
    found = serving.load(address, other, 2, 0.1, Progress())
    assert found["wrong"] == found["requests"] > 0
    past = [replace(texts[0], prompt="a" * 40_000)]
    found = serving.load(address, past, 2, 0.1, Progress())
    assert found["lost"] == found["requests"] > 0
    assert "status 400" in found["examples"]["lost"][0]
