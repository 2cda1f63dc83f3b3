"""MRPC: paraphrase or not."""

from recipes._fine_tuning import FEW, table

TABLE = table("mrpc", rows=3_668, tiny=FEW)
build = TABLE.build
