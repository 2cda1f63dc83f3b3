"""MRPC: paraphrase or not."""

from recipes._fine_tuning import COMPARED, table

TABLE = table("mrpc", rows=3_668, tiny=COMPARED)
build = TABLE.build
