"""Citations among arXiv papers: the stand-in for retrieval, with its settings, under its own name."""

from recipes.retrieval import TABLE as RETRIEVAL

TABLE = RETRIEVAL.variant("citations")
build = TABLE.build
