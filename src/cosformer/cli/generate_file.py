"""`cosformer generate --prompts`: a text for every line of a file, in order, generated in batches; a command
that was stopped continues where it was."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cosformer.cli.errors import Stopped, UsageError, readable_file, writable_file
from cosformer.terminal import Progress

LARGEST = 1 << 30  # bytes of a file of prompts or texts
BATCH = 16  # prompts

if TYPE_CHECKING:
    import torch

    from cosformer.models.batching import Choice


def check(args: argparse.Namespace) -> None:
    """Raises where the options contradict each other."""
    if args.prompts is None:
        if args.out is not None:
            raise UsageError("--out is for --prompts FILE.jsonl; a single text goes to the terminal.")
        if args.batch_size is not None:
            raise UsageError("--batch_size is for --prompts FILE.jsonl; a single text is no batch.")
        return
    if args.prompt or args.context is not None:
        raise UsageError("--prompts goes with neither --prompt nor --context: each line has its own prompt.")
    if args.out is None:
        raise UsageError("--prompts needs --out FILE.jsonl, where the texts go.")
    readable_file("--prompts", args.prompts)
    writable_file("--out", args.out)
    for option, path in (("--prompts", args.prompts), ("--out", args.out)):
        if path.exists() and path.stat().st_size > LARGEST:
            raise UsageError(
                f"{option} {path} has {path.stat().st_size:,} bytes; at most {LARGEST:,} are read."
            )
    if args.out.exists() and args.out.samefile(args.prompts):
        raise UsageError(f"--out {args.out} is the file of the prompts: give another one.")


def lines_of(path: Path) -> list[dict[str, Any]]:
    """For each line its prompt, or an error; blank lines at the end do not count."""
    lines = path.read_bytes().rstrip().split(b"\n")
    if lines == [b""]:
        raise UsageError(f'--prompts {path} is empty; a line is an object like {{"prompt": "Once upon"}}.')
    return [_parsed(line) for line in lines]


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return {"error": f"the line is not text in UTF-8 (byte {error.start})."}
    except (ValueError, RecursionError) as error:
        return {"error": f"the line is not JSON: {error}."}
    if not isinstance(found, dict) or not isinstance(found.get("prompt"), str):
        return {"error": 'the line must be an object with a text "prompt".'}
    try:
        json.dumps([found.get("id"), found["prompt"]], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return {"error": "the line has an incomplete character (a lone surrogate)."}
    return {name: found[name] for name in ("id", "prompt") if name in found}


def kept(path: Path, lines: list[dict[str, Any]], made_with: dict[str, Any]) -> int:
    """The number of complete texts that an earlier command wrote; a line that was cut off is removed."""
    if not path.exists():
        return 0
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    count = 0
    for line in whole.splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        own = lines[count] if count < len(lines) else {}
        expected = {"line": count + 1, "made_with": made_with} | {
            n: own[n] for n in ("id", "prompt") if n in own
        }
        if not isinstance(record, dict) or {n: record.get(n) for n in expected} != expected:
            raise _foreign(path, count + 1)
        count += 1
    if len(whole) < len(data):
        # Only a line that such a command began and did not finish may be removed.
        tail, begins = data[len(whole) :], f'{{"line": {count + 1}, '.encode()
        if not tail.startswith(begins) and not begins.startswith(tail):
            raise _foreign(path, count + 1)
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return count


def _foreign(path: Path, line: int) -> UsageError:
    return UsageError(
        f"--out {path} has something else in line {line} than this command would write there: give another "
        "file, or remove it to begin again."
    )


def run(args: argparse.Namespace, model: Any, tokenizer: Any, choice: Choice) -> int:
    """Writes a line for every line of the prompts; exit code 1 where some could not be used."""
    lines = lines_of(args.prompts)
    made_with = {"tokens": args.tokens, **asdict(choice)}
    begun = kept(args.out, lines, made_with)
    progress, written = Progress(every=5.0), begun
    progress.start(len(lines) - begun)
    with args.out.open("a", encoding="utf-8", newline="\n") as file:
        try:
            for record in _in_order(args, model, tokenizer, choice, lines, begun):
                progress.step(f"{written + 1:,} of {len(lines):,} texts")
                line = {"line": written + 1, **lines[written], **record, "made_with": made_with}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                file.flush()
                written += 1
        except KeyboardInterrupt:
            raise Stopped(
                f"stopped with {written:,} of {len(lines):,} lines in {args.out}; the same command continues "
                "there."
            ) from None
    progress.end()
    bad = [i + 1 for i, line in enumerate(lines) if "error" in line]
    print(f"{len(lines) - len(bad):,} texts in {args.out}")
    if bad:
        named = ", ".join(f"{n:,}" for n in bad[:5]) + (", ..." if len(bad) > 5 else "")
        print(f"{len(bad):,} lines could not be used ({named}); their errors stand in their places.")
    return 1 if bad else 0


def _in_order(
    args: argparse.Namespace,
    model: Any,
    tokenizer: Any,
    choice: Choice,
    lines: list[dict[str, Any]],
    begun: int,
) -> Iterator[dict[str, Any]]:
    """The record of each line from `begun` on, in order; a text that is finished early waits for others."""
    from cosformer.models.batching import generate_many
    from cosformer.models.continuation import continuation

    read: dict[int, torch.Tensor] = {}
    for number, line in enumerate(lines):
        if "error" not in line:
            try:
                ids = _ids(tokenizer, model.config, line["prompt"], args.tokens)
            except UsageError as error:
                line["error"] = str(error)
                continue
            if number >= begun:
                read[number] = ids
    finished: dict[int, dict[str, Any]] = {}
    size = args.batch_size or BATCH
    made = generate_many(
        model, list(read.values()), tokens=args.tokens, batch_size=size, choice=choice, numbers=list(read)
    )
    for number in range(begun, len(lines)):
        while "error" not in lines[number] and number not in finished:
            other, tokens = next(made)
            text = continuation(tokenizer, read.pop(other).tolist(), tokens)
            finished[other] = {"text": text, "tokens": len(tokens)}
        yield finished.pop(number, {})


def _ids(tokenizer: Any, config: Any, prompt: str, tokens: int) -> torch.Tensor:
    from cosformer.cli.generate import encode

    return encode(tokenizer, config, prompt, tokens)[0]
