"""Tasks under one registry: data, a metric and the kind of head, and never a training loop."""

from cosformer.tasks.base import Row, Rows, Split, Task
from cosformer.tasks.bytes_lm import Enwik8, PythonSource
from cosformer.tasks.citations import Citations
from cosformer.tasks.copying import Copy
from cosformer.tasks.fetch import fetch
from cosformer.tasks.glue_tasks import Cola, Mnli, Mrpc, Qnli, Qqp, Rte, Sst2, Stsb
from cosformer.tasks.image import Image
from cosformer.tasks.listops import ListOps
from cosformer.tasks.metrics import Metric
from cosformer.tasks.mlm import MaskedLM
from cosformer.tasks.mqar import Mqar
from cosformer.tasks.pathfinder import Pathfinder, PathX, contact_sheet
from cosformer.tasks.registry import build, get, names, parameters, register
from cosformer.tasks.retrieval import Retrieval
from cosformer.tasks.reverse import Reverse
from cosformer.tasks.reviews import Amazon, Imdb, Text
from cosformer.tasks.sources import DataError
from cosformer.tasks.wikitext import WikiText2, WikiText103

__all__ = [
    "Amazon",
    "Citations",
    "Cola",
    "Copy",
    "DataError",
    "Enwik8",
    "Image",
    "Imdb",
    "ListOps",
    "MaskedLM",
    "Metric",
    "Mnli",
    "Mqar",
    "Mrpc",
    "PathX",
    "Pathfinder",
    "PythonSource",
    "Qnli",
    "Qqp",
    "Retrieval",
    "Reverse",
    "Row",
    "Rows",
    "Rte",
    "Split",
    "Sst2",
    "Stsb",
    "Task",
    "Text",
    "WikiText2",
    "WikiText103",
    "build",
    "contact_sheet",
    "fetch",
    "get",
    "names",
    "parameters",
    "register",
]
