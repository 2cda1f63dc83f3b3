"""A server under load: streams that never pause, on this machine alone, each text compared with that of
`generate()` without a server.

    python -m benchmarks.serving --out benchmarks/reports/serving-cpu.json

Starts `cosformer serve` with a small model of random weights. Every stream asks for one text after another,
with prompts and lengths of its own, until the time is over, and reads the last to its end. Texts with a
choice so close that rounding could decide it are left out beforehand. Needs the extra `serve`.
"""

import http.client
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from benchmarks.record import check_out, header
from benchmarks.terminal import Parser, Progress
from benchmarks.timing import summary
from cosformer.atomic import write_json
from cosformer.cli.parser import number, positive_int
from cosformer.models import CosformerConfig, CosformerForCausalLM, byte_tokenizer, token_fields

FORMAT = "cosformer serving benchmark 1"
CLEAR = 1e-3  # least difference of the best two logits at every token
PROMPT, TOKENS = (1, 400), (8, 96)  # least and most


@dataclass(frozen=True)
class Text:
    prompt: str
    tokens: int
    expected: str


@dataclass
class Tally:
    """What the streams have seen."""

    requests: int = 0
    tokens: int = 0
    lost: list[str] = field(default_factory=list)
    wrong: list[dict[str, Any]] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)  # to the first part of a text
    whole_s: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def parser() -> Parser:
    p = Parser(prog="python -m benchmarks.serving", description=__doc__)
    p.add_argument("--streams", type=positive_int, default=64, help="at the same time (default: 64)")
    p.add_argument("--seconds", type=number(0, 3600), default=120, help="default: 120")
    p.add_argument("--texts", type=positive_int, default=96, help="that are asked for (default: 96)")
    p.add_argument("--hidden", type=positive_int, default=128, help="width of the model (default: 128)")
    p.add_argument("--layers", type=positive_int, default=4, help="of the model (default: 4)")
    p.add_argument("--batch_size", type=positive_int, default=64, help="of the server (default: 64)")
    p.add_argument("--threads", type=positive_int, default=1, help="of the server (default: 1)")
    p.add_argument("--out", type=Path, help="where the record goes (default: nowhere)")
    return p


def save_model(folder: Path, hidden: int, layers: int) -> CosformerForCausalLM:
    """Random weights, large enough that every token of the past matters."""
    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    config = CosformerConfig.paper(
        **token_fields(tokenizer), hidden_size=hidden, num_hidden_layers=layers,
        num_attention_heads=max(2, hidden // 32), max_position_embeddings=2048, position="rotary",
        initializer_range=0.25,
    )  # fmt: skip
    model = CosformerForCausalLM(config).eval()
    model.lm_head.weight.data[127:] *= 0.1  # it speaks ASCII: each token is a part of the stream
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def offline(model: CosformerForCausalLM, count: int, progress: Progress) -> tuple[list[Text], dict[str, Any]]:
    """Texts with clear choices, by generate(), one at a time; how many were unclear, and how fast it was."""
    draw, tokenizer = random.Random(0), byte_tokenizer()
    source = Path(random.__file__).read_text(encoding="utf-8")  # of Python's standard library
    found: list[Text] = []
    unclear = made = 0
    took = 0.0
    progress.start(count)
    while len(found) < count:
        start, length, tokens = (
            draw.randrange(len(source) - 400),
            draw.randint(*PROMPT),
            draw.randint(*TOKENS),
        )
        prompt = source[start : start + length]
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        begun = time.perf_counter()
        out = model.generate(
            ids, max_new_tokens=tokens, do_sample=False, output_logits=True, return_dict_in_generate=True
        )
        took += time.perf_counter() - begun
        made += len(out.logits)
        best = torch.stack(out.logits).topk(2).values
        if float((best[..., 0] - best[..., 1]).min()) < CLEAR:
            unclear += 1
            continue
        text = tokenizer.decode(out.sequences[0, ids.shape[1] :], skip_special_tokens=True)
        found.append(Text(prompt, tokens, text))
        progress.step(f"{len(found)} of {count} texts without a server")
    progress.end()
    return found, {"unclear_texts": unclear, "offline_tokens_per_s": made / took}


def start(folder: Path, batch_size: int, threads: int) -> tuple[subprocess.Popen[str], str]:
    """A server, and its address."""
    command = [sys.executable, "-m", "cosformer", "serve", str(folder), "--port", "0"]
    path = os.pathsep.join([str(machine.ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [*command, "--batch_size", str(batch_size), "--device", "cpu"],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    said = process.stdout.readline()
    if "http://127.0.0.1:" not in said:
        process.kill()
        process.wait()
        raise RuntimeError(f"the server did not start: {said}")
    return process, said.split("http://")[1].split("/v1")[0]


def read(address: str, text: Text) -> tuple[str, int, float]:
    """What came for a text, in parts: all of it, its tokens, and the seconds to the first part."""
    connection = http.client.HTTPConnection(address, timeout=300)
    body = {"prompt": text.prompt, "max_tokens": text.tokens, "temperature": 0, "stream": True}
    begun, first = time.perf_counter(), 0.0
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}: {answer.read()[:200]!r}")
        parts: list[str] = []
        usage = None
        for line in answer:
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(event["error"])
                first = first or time.perf_counter() - begun
                parts.append(event["choices"][0]["text"])
                usage = event.get("usage") or usage
        if usage is None:
            raise RuntimeError("the stream broke off")
        return "".join(parts), usage["completion_tokens"], first
    finally:
        connection.close()


def stream(address: str, texts: list[Text], seed: int, until: float, tally: Tally) -> None:
    """One text after another, until the time is over."""
    draw = random.Random(seed)
    while time.perf_counter() < until:
        text, begun = draw.choice(texts), time.perf_counter()
        try:
            got, tokens, first = read(address, text)
        except Exception as error:  # whatever a connection may do: it counts as lost
            with tally.lock:
                tally.requests += 1
                tally.lost.append(f"{type(error).__name__}: {error}")
            continue
        with tally.lock:
            tally.requests += 1
            tally.tokens += tokens
            tally.first_s.append(first)
            tally.whole_s.append(time.perf_counter() - begun)
            if got != text.expected:
                tally.wrong.append({"prompt": text.prompt, "expected": text.expected, "got": got})


def load(address: str, texts: list[Text], streams: int, seconds: float, progress: Progress) -> dict[str, Any]:
    tally, begun = Tally(), time.perf_counter()
    until = begun + seconds
    threads = [
        threading.Thread(target=stream, args=(address, texts, seed, until, tally)) for seed in range(streams)
    ]
    for thread in threads:
        thread.start()
    progress.start(int(seconds) + 1)
    while any(thread.is_alive() for thread in threads):
        time.sleep(min(1.0, seconds))
        now = time.perf_counter() - begun
        progress.step(f"{tally.requests:,} texts, {len(tally.wrong)} wrong, {len(tally.lost)} lost", int(now))
    progress.end()
    took = time.perf_counter() - begun
    return {
        "seconds": took,
        "requests": tally.requests,
        "lost": len(tally.lost),
        "wrong": len(tally.wrong),
        "tokens": tally.tokens,
        "tokens_per_s": tally.tokens / took,
        "first_part": summary(tally.first_s) if tally.first_s else None,
        "whole_text": summary(tally.whole_s) if tally.whole_s else None,
        "examples": {"lost": tally.lost[:3], "wrong": tally.wrong[:3]},
    }


def measure(args: Any) -> dict[str, Any]:
    others, progress, before = machine.Others(), Progress(), torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        model = save_model(Path(folder) / "small", args.hidden, args.layers)
        torch.set_num_threads(args.threads)
        texts, alone = offline(model, args.texts, progress)
        torch.set_num_threads(before)
        process, address = start(Path(folder) / "small", args.batch_size, args.threads)
        try:
            read(address, texts[0])  # what is done once, at the first request
            found = load(address, texts, args.streams, args.seconds, progress)
            lives = process.poll() is None
        finally:
            process.terminate()
            process.wait(60)
    names = ("streams", "texts", "hidden", "layers", "batch_size", "threads")
    settings = {name: getattr(args, name) for name in names} | {"parameters": model.num_parameters()}
    return header(FORMAT, torch.device("cpu")) | {
        "settings": settings,
        **alone,
        **found,
        "server_lives": lives,
        "others_share": others.share(),
    }


def main(words: list[str] | None = None) -> int:
    p = parser()
    args = p.parse_args(words)
    check_out(p, args.out)
    data = measure(args)
    if args.out is not None:
        write_json(args.out, data)
    print(
        f"{data['requests']:,} texts and {data['tokens']:,} tokens in {data['seconds']:.0f} s: "
        f"{data['tokens_per_s']:,.0f} tokens/s ({data['offline_tokens_per_s']:,.0f} by generate(), one text "
        f"at a time); {data['wrong']} wrong, {data['lost']} lost"
    )
    return 1 if data["wrong"] or data["lost"] or not data["server_lives"] else 0


if __name__ == "__main__":
    sys.exit(main())
