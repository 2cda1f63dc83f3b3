"""The log of a run: one JSON object a line, always; TensorBoard beside it where it is installed."""

import contextlib
import importlib.util
import json
from pathlib import Path
from typing import Any

from cosformer import reading
from cosformer.atomic import flush, replace


class Log:
    """`log.jsonl` of a run's folder.

    Lines about a step hold what follows from the run alone, and a resumed run writes the very same ones; what
    depends on the clock is in lines of its own (`event` "speed", "resumed"). Of several processes one
    writes.
    """

    def __init__(self, folder: Path, *, writes: bool = True):
        self.path, self.writes = folder / "log.jsonl", writes
        self._file: Any = None
        self._board: Any = None

    def _lines(self) -> list[dict[str, Any]]:
        """All that was written, each line about a step."""
        found = reading.json_lines(self.path)
        for number, line in enumerate(found, 1):
            if isinstance(line.get("step"), bool) or not isinstance(line.get("step"), int):
                raise ValueError(f"{self.path}, line {number}: it names no step. Remove the line.")
        return found

    def rewind(self, step: int, *, unscored: bool = False) -> None:
        """Removes what the run writes again when it goes on from a step: the lines after it, a line that a
        crash has cut off, scores of the test split, and with `unscored` those of the step itself."""
        if not self.writes:
            return
        again = ("test", "valid") if unscored else ("test",)
        kept = [
            line
            for line in self._lines()
            if line["step"] < step or (line["step"] == step and line.get("event") not in again)
        ]
        self.close()
        replace(self.path, "".join(json.dumps(line) + "\n" for line in kept))
        if importlib.util.find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(self.path.with_name("tensorboard")), purge_step=step + 1)

    def write(self, step: int, **values: Any) -> None:
        if not self.writes:
            return
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a", encoding="utf-8")
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        if self._board is not None:
            kind = values.get("event", "train")
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(f"{kind}/{name}", value, step)

    def flush(self) -> None:
        """Waits until all lines are on the disk."""
        if self._file is not None:
            flush(self.path)
        if self._board is not None:
            self._board.flush()

    def abandon(self) -> None:
        """After a failure: drops lines that a full disk did not take, without another attempt."""
        opened, self._file = self._file, None
        if opened is not None:
            with contextlib.suppress(OSError):
                opened.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._board is not None:
            self._board.flush()
