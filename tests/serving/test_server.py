"""A real server process, asked over HTTP: each client gets its own text, and mistakes are theirs alone."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import pytest
import torch

from cosformer.models import CosformerForCausalLM, byte_tokenizer
from tests.serving.conftest import LONGEST

for needed in ("fastapi", "openai", "uvicorn"):
    pytest.importorskip(needed, reason='needs the extra "serve"')

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPTS = ["def main(", "x", "import os\n" * 9, "# Grüße", "class A:\n    ", "\n", "0123456789", "while True"]


@pytest.fixture(scope="module")
def offline(saved):
    """The greedy text of generate(), without a server."""
    model, tokenizer = CosformerForCausalLM.from_pretrained(saved), byte_tokenizer()

    def generate(prompt, tokens, **options):
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        out = model.generate(ids, max_new_tokens=tokens, **{"do_sample": False} | options)
        return tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)

    return generate


def begin(address, path, body):
    """A connection on which a request was sent."""
    connection = HTTPConnection(address, timeout=60)
    data = body if isinstance(body, bytes) else json.dumps(body)
    connection.request("POST", path, data, {"Content-Type": "application/json"})
    return connection


def ask(address, path, body):
    connection = begin(address, path, body)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def test_the_client_of_the_documentation_gets_an_answer(address, capsys):
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    for shown, here in (
        ("127.0.0.1:8000", address),
        ('"FOLDER"', '"small"'),
        ("stream=True", "stream=True, max_tokens=5"),
    ):
        assert shown in code
        code = code.replace(shown, here)
    exec(compile(code, "docs/serving.md", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out


def text(address, prompt, tokens, **fields):
    """What a client of /v1/completions gets, in parts or whole."""
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, **fields}
    if not fields.get("stream"):
        status, answer = ask(address, COMPLETIONS, body)
        assert status == 200, answer
        return answer["choices"][0]["text"]
    events = begin(address, COMPLETIONS, body).getresponse().read().decode().strip().split("\n\n")
    return "".join(json.loads(e.removeprefix("data: "))["choices"][0]["text"] for e in events)


def test_the_client_of_openai(address, offline):
    from openai import OpenAI

    client = OpenAI(base_url=f"http://{address}/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == ["small"]
    options = {"model": "small", "max_tokens": 40, "temperature": 0}
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    expected = offline("Be brief.\nWhy?", 40)
    whole = client.chat.completions.create(messages=messages, **options)
    assert whole.choices[0].message.content == expected
    assert whole.choices[0].finish_reason == "length"
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (14, 40)
    parts = [c.choices[0] for c in client.chat.completions.create(messages=messages, stream=True, **options)]
    assert len(parts) > 10
    assert "".join(part.delta.content or "" for part in parts) == expected
    assert [part.finish_reason for part in parts if part.finish_reason] == ["length"]
    assert client.completions.create(prompt="Why?", **options).choices[0].text == offline("Why?", 40)


def test_clients_at_once_get_their_own_texts(address, offline):
    """Twice as many as there are places; some in parts, some through generate() beside the batch."""
    jobs = [(prompt, 5 + 9 * i, {"stream": i % 2 == 0}) for i, prompt in enumerate(PROMPTS)]
    beams = {"generation_config": json.dumps({"num_beams": 3, "do_sample": False})}
    jobs += [("beams", 12, {**beams}), ("stop", 40, {"stop": ["\0\0\0", "never"], "stream": True})]
    expected = [offline(p, n, num_beams=3 if p == "beams" else 1) for p, n, _ in jobs]
    with ThreadPoolExecutor(len(jobs)) as pool:
        found = list(pool.map(lambda job: text(address, job[0], job[1], **job[2]), jobs))
    assert found == expected


@pytest.mark.parametrize("by", [{}, {"stop": "\0\0never"}], ids=["shared batch", "generate()"])
def test_draws_follow_the_seed_of_the_request(address, by):
    drawn = {"temperature": 1.0, "top_p": 0.9, **by}
    jobs = [{"seed": 3}, {"seed": 4}, {"seed": 3, "stream": True}, {}, {}]
    with ThreadPoolExecutor(len(jobs)) as pool:
        found = list(pool.map(lambda job: text(address, "a", 30, **drawn, **job), jobs))
    assert found[0] == found[2]
    assert len(set(found)) == 4


@pytest.mark.parametrize("bias", [100, 100.0])
def test_a_bias_makes_a_token_likelier(address, bias):
    """In whole numbers as well, which is how OpenAI's clients write it."""
    fields = {"logit_bias": {"97": bias}, "max_tokens": 4, "temperature": 0}
    assert text(address, "b", 4, logit_bias={"97": bias}) == "aaaa"
    status, answer = ask(address, CHAT, {"messages": [{"role": "user", "content": "b"}], **fields})
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "aaaa")


@pytest.mark.parametrize("kind", ["stream", "whole", "whole, by generate()", "stream, by generate()"])
def test_a_client_that_goes_away_frees_the_server(address, kind):
    """All places taken by texts of a minute, whose readers leave: the next one is answered soon."""
    alone = {"stop": "\0\0never"} if "generate" in kind else {}
    long = {"prompt": "a", "max_tokens": LONGEST - 10, "temperature": 0, "stream": "stream" in kind, **alone}
    connections = [begin(address, COMPLETIONS, long) for _ in range(4)]
    for connection in connections:
        if kind == "stream":
            assert connection.getresponse().read(20).startswith(b"data: ")
    time.sleep(0.0 if kind.startswith("stream,") else 0.3)  # also before the answer has begun
    for connection in connections:
        connection.sock.close()
        connection.close()
    begun = time.perf_counter()
    text(address, "b", 3, **alone)
    assert time.perf_counter() - begun < 10


MISTAKES = {
    "no JSON": (COMPLETIONS, b'{"prompt": ', 422, "JSON decode error"),
    "a list": (CHAT, [1], 422, "valid dictionary"),
    "another model": (COMPLETIONS, {"prompt": "a", "model": "gpt"}, 400, "pinned to 'small'"),
    "a number for a model": (COMPLETIONS, {"prompt": "a", "model": 5}, 400, "pinned to 'small'"),
    "a field of nobody": (COMPLETIONS, {"prompt": "a", "promt": "b"}, 422, "Unexpected fields"),
    "a number for a text": (COMPLETIONS, {"prompt": 5}, 400, "prompt must be a text, but got 5."),
    "half a character": (COMPLETIONS, b'{"prompt": "\\ud800"}', 400, "prompt must be a text"),
    "words for a number": (COMPLETIONS, {"prompt": "a", "max_tokens": "many"}, 400, "max_tokens must be"),
    "true for a number": (COMPLETIONS, {"prompt": "a", "temperature": True}, 400, "from 0 to 100"),
    "not a number": (COMPLETIONS, b'{"prompt": "a", "top_p": NaN}', 400, "top_p must be a number"),
    "no end of tokens": (COMPLETIONS, {"prompt": "a", "max_tokens": 10**30}, 400, "max_tokens must be"),
    "a stop of nothing": (COMPLETIONS, {"prompt": "a", "stop": [""]}, 400, "stop must be a text, or a list"),
    "a configuration in prose": (COMPLETIONS, {"prompt": "a", "generation_config": "warm"}, 400, "the JSON"),
    "an impossible draw": (
        COMPLETIONS,
        {"prompt": "a", "generation_config": '{"temperature": -2.0, "do_sample": true}'},
        400,
        "temperature",
    ),
    "guesses that cannot be taken back": (
        COMPLETIONS,
        {"prompt": "aaaa", "generation_config": '{"prompt_lookup_num_tokens": 2, "max_new_tokens": 9}'},
        400,
        "prompt_lookup_num_tokens and assistant models must be left out",
    ),
    "a prompt past the end": (
        COMPLETIONS,
        {"prompt": "a" * LONGEST},
        400,
        f"the prompt has {LONGEST:,} tokens, but the model takes {LONGEST:,}",
    ),
    "the same, in parts": (COMPLETIONS, {"prompt": "a" * LONGEST, "stream": True}, 400, "shorten the prompt"),
    "no messages": (CHAT, {"messages": []}, 400, "messages must be a list of objects"),
    "messages in prose": (CHAT, {"messages": "hello"}, 400, "messages must be a list of objects"),
    "a message without a text": (CHAT, {"messages": [{"role": "user"}]}, 400, "messages must be a list"),
    "a picture": (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
        400,
        "messages must be a list",
    ),
    "tools": (CHAT, {"messages": [{"role": "user", "content": "a"}], "tools": [{}]}, 400, "calls none"),
    "a template of the client's": (
        CHAT,
        {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"chat_template": "x"}},
        400,
        "chat_template_kwargs must be",
    ),
    "loading another model": ("/load_model", {"model": "gpt"}, 404, "Not Found"),
    "unloading the model": ("/reset", {}, 404, "Not Found"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_answered_in_one_sentence(address, mistake):
    path, body, status, says = mistake
    found, answer = ask(address, path, body)
    assert (found, says in json.dumps(answer, ensure_ascii=False)) == (status, True), answer


def test_the_end_of_what_the_model_takes(address, offline):
    """Without max_tokens the text goes on as far as there is room, or 1,024 tokens, and says why it ended."""
    prompt = "ab" * (LONGEST // 2 - 4)
    status, answer = ask(address, COMPLETIONS, {"prompt": prompt, "temperature": 0})
    assert (status, answer["choices"][0]["finish_reason"]) == (200, "length")
    assert answer["choices"][0]["text"] == offline(prompt, 8)


def test_the_end_of_a_text(saved, address, offline):
    """A token that ends the text is not part of it."""
    model = CosformerForCausalLM.from_pretrained(saved)
    first = model(torch.tensor([[97]])).logits[0, -1].argmax().item()
    ends = {"generation_config": json.dumps({"eos_token_id": first, "max_new_tokens": 9})}
    _, answer = ask(address, COMPLETIONS, {"prompt": "a", "temperature": 0, **ends})
    assert answer["choices"][0] == {"finish_reason": "stop", "index": 0, "text": ""}
    assert answer["usage"]["completion_tokens"] == 0
