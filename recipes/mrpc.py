"""MRPC: paraphrase or not."""

from recipes._fine_tuning import table

TABLE = table("mrpc", rows=3_668)
build = TABLE.build
