"""IMDB: the sentiment of whole film reviews."""

from recipes._fine_tuning import table

TABLE = table("imdb", rows=25_000, length=512)
build = TABLE.build
