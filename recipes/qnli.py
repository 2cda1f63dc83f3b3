"""QNLI: does the sentence answer the question?."""

from recipes._fine_tuning import COMPARED, table

TABLE = table("qnli", rows=104_743, tiny=COMPARED)
build = TABLE.build
