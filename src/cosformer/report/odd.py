"""Records whose parts are not what they should be: a sentence that says where, in place of a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

from cosformer.report.records import RecordError

# What becomes of reading a number where there is text, a part that is missing, an infinite axis.
_ODD = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@contextmanager
def told(where: object) -> Iterator[None]:
    """Around what renders records: what cannot be rendered is an error about them."""
    try:
        yield
    except RecordError:
        raise
    except _ODD as error:
        said = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
        raise RecordError(
            f"{where} is not what it should be ({said}): put a whole copy in its place, or remove it."
        ) from error
