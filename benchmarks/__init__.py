"""What is timed here, and how: `python -m benchmarks.attention_operator --help` is the place to start."""
