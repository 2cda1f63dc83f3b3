"""Amazon: the sentiment of product reviews."""

from recipes._fine_tuning import table

TABLE = table("amazon", rows=200_000, length=512)
build = TABLE.build
