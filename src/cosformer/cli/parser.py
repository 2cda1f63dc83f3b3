"""The argument parser: a typo gets a suggestion, an error is one sentence and exit code 2."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from cosformer.cli.errors import capitalised, printable
from cosformer.registry import nearest


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' Did you mean ...?', or nothing where no known word is near."""
    near = nearest(word, known, cutoff=0.55)
    return f" Did you mean {near}?" if near else ""


class Parser(argparse.ArgumentParser):
    """Without abbreviations (a typo could pass for one), and without the usage text in errors."""

    def __init__(self, *args: Any, **kwargs: Any):
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **kwargs)
        self.flags = ["--help"]

    def add_argument(self, *args: Any, **kwargs: Any) -> argparse.Action:
        # The constructor adds --help before there is a list to put it on.
        if hasattr(self, "flags"):
            self.flags += [a for a in args if a.startswith("--")]
        return super().add_argument(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        sentence = printable(capitalised(message))
        end = "" if sentence.endswith((".", "?")) else "."
        self.exit(2, f"{self.prog}: {sentence}{end} See {self.prog} --help.\n")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, left = self.parse_known_args(args, namespace)
        if hasattr(found, "settings"):  # NAME=VALUE words may be anywhere, also after options
            found.settings += [word for word in left if not word.startswith("-")]
            left = [word for word in left if word.startswith("-")]
        if left:
            getattr(found, "parser", self).unknown(left)
        return found

    def unknown(self, words: Sequence[str]) -> NoReturn:
        """The first word that belongs to no option, and what it may have been."""
        word = words[0].partition("=")[0]
        if word.startswith("-"):
            self.error(f"there is no option {word}.{did_you_mean(word, self.flags)}")
        self.error(f"{word!r} is one argument too many")


def one_of(*names: str) -> Callable[[str], str]:
    """The type of an option that takes one of these words."""

    def choose(word: str) -> str:
        if word not in names:
            hint = did_you_mean(word, names) or f" Choose one of {', '.join(names)}."
            raise argparse.ArgumentTypeError(f"{word!r} is not known.{hint}")
        return word

    return choose


def positive_int(word: str) -> int:
    if not word.isascii() or not word.isdigit() or not word.strip("0"):
        raise argparse.ArgumentTypeError(f"a positive whole number is expected, not {word!r}")
    if len(word.lstrip("0")) > 9:
        raise argparse.ArgumentTypeError(
            f"a number below 1,000,000,000 is expected, not one of {len(word)} digits"
        )
    return int(word)


def seed(word: str) -> int:
    if not word.isascii() or not word.isdigit() or len(word) > 10 or int(word) >= 2**32:
        raise argparse.ArgumentTypeError("a whole number from 0 to 4,294,967,295 is expected")
    return int(word)


def number(low: float, high: float) -> Callable[[str], float]:
    """The type of an option that takes a number above `low` and up to `high`."""

    def read(word: str) -> float:
        try:
            value = float(word)
        except ValueError:
            value = float("nan")
        if not low < value <= high:
            bounds = f"above {low:g}" + ("" if high == float("inf") else f" and at most {high:g}")
            raise argparse.ArgumentTypeError(f"a number {bounds} is expected, not {word!r}")
        return value

    return read
