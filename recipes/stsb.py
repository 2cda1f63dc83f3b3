"""STS-B: similarity of sentences, a regression."""

from recipes._fine_tuning import COMPARED, table

TABLE = table("stsb", rows=5_749, tiny=COMPARED)
build = TABLE.build
