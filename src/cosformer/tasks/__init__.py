"""Tasks under one registry: data, a metric and the kind of head, and never a training loop."""

from cosformer.tasks.base import Row, Rows, Split, Task
from cosformer.tasks.metrics import Metric
from cosformer.tasks.mqar import Mqar
from cosformer.tasks.registry import build, get, names, parameters, register
from cosformer.tasks.reverse import Reverse

__all__ = [
    "Metric",
    "Mqar",
    "Reverse",
    "Row",
    "Rows",
    "Split",
    "Task",
    "build",
    "get",
    "names",
    "parameters",
    "register",
]
