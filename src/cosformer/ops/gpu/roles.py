"""The tensors of the one sum that all kernels compute (the table in rows.py)."""

from typing import NamedTuple


class Roles(NamedTuple):
    """Which tensors are a, b, c and y of an output (the table in rows.py); x: the one whose sign gates y. In
    the kernels for windows c is called X, and x GATE."""

    a: str
    b: str
    c: str
    y: str
    x: str | None


ROLES = {
    "o": Roles("q", "k", "v", "out", None),
    "dq": Roles("g", "v", "k", "dq", "q"),
    "dk": Roles("v", "g", "q", "dk", "k"),
    "dv": Roles("k", "q", "g", "dv", None),
}
