"""STS-B: similarity of sentences, a regression."""

from recipes._fine_tuning import table

TABLE = table("stsb", rows=5_749)
build = TABLE.build
