"""QNLI: does the sentence answer the question?."""

from recipes._fine_tuning import table

TABLE = table("qnli", rows=104_743)
build = TABLE.build
