"""What is timed here, and how: `python -m benchmarks.operator --help` is the place to start."""
