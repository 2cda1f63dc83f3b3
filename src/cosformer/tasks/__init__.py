"""Tasks under one registry: data, a metric and the kind of head, and never a training loop."""

from cosformer.tasks.base import Row, Rows, Split, Task
from cosformer.tasks.fetch import fetch
from cosformer.tasks.glue.reviews import Amazon, Imdb, Text
from cosformer.tasks.glue.tasks import Cola, Mnli, Mrpc, Qnli, Qqp, Rte, Sst2, Stsb
from cosformer.tasks.io import cache, sources
from cosformer.tasks.io.sources import DataError
from cosformer.tasks.language.bytes_lm import Enwik8, PythonSource
from cosformer.tasks.language.mlm import MaskedLM
from cosformer.tasks.language.wikitext import WikiText2, WikiText103
from cosformer.tasks.lra.citations import Citations
from cosformer.tasks.lra.image import Image
from cosformer.tasks.lra.listops import ListOps
from cosformer.tasks.lra.pathfinder import Pathfinder, PathX, contact_sheet
from cosformer.tasks.lra.retrieval import Retrieval
from cosformer.tasks.masked import Masked
from cosformer.tasks.metrics import Metric
from cosformer.tasks.registry import build, get, names, parameters, register
from cosformer.tasks.synthetic.copying import Copy
from cosformer.tasks.synthetic.mqar import Mqar
from cosformer.tasks.synthetic.reverse import Reverse

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
    "Masked",
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
    "cache",
    "contact_sheet",
    "fetch",
    "get",
    "names",
    "parameters",
    "register",
    "sources",
]
