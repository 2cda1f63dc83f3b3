"""Requests that arrive at any time and share the steps of one batch."""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from cosformer.models.batching import Batch, Row
from cosformer.models.language import CosformerForCausalLM


@dataclass(eq=False, kw_only=True)
class Request(Row):
    """A row of a request. Both functions are called from the thread of the batch: `say` with each token, and
    `end` once, with None or with the error."""

    say: Callable[[int], object]
    end: Callable[[Exception | None], object]
    cancelled: threading.Event = field(default_factory=threading.Event)
    closed: bool = False

    def take(self, token: int) -> None:
        super().take(token)
        try:
            if token not in self.ends:
                self.say(token)
        except Exception as error:  # of this request: the others continue
            self.close(error)
        if self.finished:
            self.close(None)

    def close(self, error: Exception | None) -> None:
        if not self.closed:
            self.closed = True
            self.end(error)


class SharedBatch:
    """A batch of at most `batch_size` requests, in its own thread; further requests wait in order. Between
    two tokens, finished and cancelled ones are removed, and the next ones take their places."""

    def __init__(self, model: CosformerForCausalLM, batch_size: int):
        self.batch_size = batch_size
        self._batch: Batch[Request] = Batch(model)
        self._waiting: queue.SimpleQueue[Request] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="shared batch", daemon=True).start()

    def submit(self, request: Request) -> None:
        self._waiting.put(request)

    def _run(self) -> None:
        while True:
            try:
                self._turn()
            except Exception as error:  # of a step: it cannot be attributed to one request
                rows, self._batch = self._batch.rows, Batch(self._batch.model)
                for row in rows:
                    row.close(error)

    def _turn(self) -> None:
        """One token for every row."""
        batch = self._batch
        for row in batch.rows:
            if row.cancelled.is_set():
                row.close(None)
        leaving = [i for i, row in enumerate(batch.rows) if row.closed]
        if len(leaving) == len(batch.rows):
            batch.exchange(leaving, [])  # frees their states before waiting for requests
            leaving = []
        coming = self._take(self.batch_size - len(batch.rows) + len(leaving), wait=not batch.rows)
        self._exchange(leaving, coming)
        if batch.rows:
            chosen = batch.choose()
            if not all(row.closed for row in batch.rows):
                batch.step(chosen)

    def _exchange(self, leaving: list[int], coming: list[Request]) -> None:
        """New requests are read together; if that fails, one by one, to find the one that cannot be read."""
        try:
            self._batch.exchange(leaving, coming)
        except Exception as error:
            self._batch.exchange(leaving, [])
            if len(coming) == 1:
                coming[0].close(error)
            else:
                for row in coming:
                    self._exchange([], [row])

    def _take(self, most: int, *, wait: bool) -> list[Request]:
        """The next requests; with `wait`, at least one that is not cancelled."""
        found: list[Request] = []
        while len(found) < most and not (self._waiting.empty() and (found or not wait)):
            row = self._waiting.get()
            if row.cancelled.is_set():
                row.close(None)
            else:
                found.append(row)
        return found
