"""CoLA: grammatical or not."""

from recipes._fine_tuning import table

TABLE = table("cola", rows=8_551)
build = TABLE.build
