"""Malformed records: a sentence that says where, in place of a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

from cosformer.report.records import RecordError

# Raised where a number is text, a part is missing, or an axis infinite.
_ODD = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@contextmanager
def told(where: object) -> Iterator[None]:
    """Around code that renders records: its errors are reported as errors of the records."""
    try:
        yield
    except RecordError:
        raise
    except _ODD as error:
        said = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
        raise RecordError(
            f"{where} is not what it should be ({said}): put a whole copy in its place, or remove it."
        ) from error
