"""Validation of requests. transformers' server passes most fields on unchecked, and a wrong one would be
answered as an error of the server (500) in place of the client's (400)."""

import inspect
import json
import math
from typing import Any

from fastapi import HTTPException
from transformers import GenerationConfig, PreTrainedTokenizerBase

_TEMPLATE = inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters


def check_chat(body: dict[str, Any]) -> None:
    """Raises an HTTPException of one sentence for the first wrong field of a chat."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
        raise HTTPException(
            400, 'messages must be a list of objects with texts "role" and "content", and not be empty.'
        )
    if body.get("tools"):
        raise HTTPException(400, "tools must be left out: the model calls none.")
    if body.get("max_tokens") is None:  # the newer name of the same, which transformers' server ignores
        body["max_tokens"] = body.get("max_completion_tokens")
    check_fields(body)


def check_fields(body: dict[str, Any]) -> None:
    """The same for the fields that every request may have."""
    for name, (wanted, right) in _FIELDS.items():
        if body.get(name) is not None and not right(body[name]):
            raise HTTPException(400, f"{name} must be {wanted}, but got {body[name]!r:.60}.")
    if body.get("logit_bias") is not None:  # transformers takes no whole numbers
        body["logit_bias"] = {token: float(bias) for token, bias in body["logit_bias"].items()}


def _is_message(given: Any) -> bool:
    if not isinstance(given, dict) or not isinstance(given.get("role"), str) or "tool_calls" in given:
        return False
    content = given.get("content")
    return _is_text(content) or (isinstance(content, list) and all(map(_is_part, content)))


def _is_part(given: Any) -> bool:
    return isinstance(given, dict) and given.get("type") == "text" and _is_text(given.get("text"))


def _is_text(given: Any) -> bool:
    """Text that can be encoded: JSON may hold a lone surrogate."""
    try:
        return isinstance(given, str) and given.encode() is not None
    except UnicodeEncodeError:
        return False


def _is_int(given: Any, low: float = -math.inf, high: float = math.inf) -> bool:
    return isinstance(given, int) and _is_number(given, low, high)


def _is_number(given: Any, low: float, high: float) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and low <= given <= high


def _is_stop(given: Any) -> bool:
    texts = [given] if isinstance(given, str) else given
    return isinstance(texts, list) and all(_is_text(x) and x for x in texts) and len(texts) > 0


def _is_bias(given: Any) -> bool:
    return isinstance(given, dict) and all(
        key.isascii() and key.isdigit() and _is_number(value, -100, 100) for key, value in given.items()
    )


def _is_generation_config(given: Any) -> bool:
    try:
        return isinstance(given, str) and GenerationConfig(**json.loads(given)) is not None
    except Exception:  # its checks raise many classes
        return False


def _is_for_template(given: Any) -> bool:
    return isinstance(given, dict) and not any(name in _TEMPLATE for name in given)


# What every field must be, in words and as a check.
_FIELDS = {
    "prompt": ("a text", _is_text),
    "suffix": ("a text", _is_text),
    "max_tokens": ("a positive whole number", lambda x: _is_int(x, 1, 10**9)),
    "temperature": ("a number from 0 to 100", lambda x: _is_number(x, 0, 100)),
    "top_p": ("a number from 0 to 1", lambda x: _is_number(x, 0, 1)),
    "frequency_penalty": ("a number above -1, up to 2", lambda x: _is_number(x, -0.99, 2)),
    "seed": ("a whole number from 0 to 2^63", lambda x: _is_int(x, 0, 2**63)),
    "stream": ("true or false", lambda x: isinstance(x, bool)),
    "stop": ("a text, or a list of texts, none of them empty", _is_stop),
    "logit_bias": ("an object of tokens and numbers from -100 to 100", _is_bias),
    "generation_config": ("the JSON of a GenerationConfig, as a text", _is_generation_config),
    "chat_template_kwargs": ("an object of names that the chat template knows", _is_for_template),
}
