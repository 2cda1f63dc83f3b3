"""The error for a text that is longer than the model's greatest length."""

from typing import Any

from torch import Tensor


class HorizonError(ValueError):
    """A token would stand past the greatest length of the model.

    It is raised before anything is changed: a cache is still what it was, and the text generated so far
    is in `sequences`.

    Attributes:
        horizon: the horizon M of the model.
        length: the greatest length of a text, max_position_embeddings.
        position: the position that was asked for, counted from 0.
        sequences: token ids [B, T] so far, prompt included, inside `generate`; else None.
        past_key_values: the cache at that point, or None.
    """

    def __init__(
        self,
        *,
        horizon: float,
        length: int,
        position: int,
        sequences: Tensor | None = None,
        past_key_values: Any = None,
    ):
        kept = "" if sequences is None else " What was generated so far is in the error's `sequences`."
        super().__init__(
            f"position {position} is past the end: the model has horizon {horizon:g} and takes texts of at "
            f"most {length} tokens (max_position_embeddings). Shorten the text, or build the model with a "
            f"greater max_position_embeddings.{kept}"
        )
        self.horizon, self.length, self.position = horizon, length, position
        self.sequences, self.past_key_values = sequences, past_key_values
