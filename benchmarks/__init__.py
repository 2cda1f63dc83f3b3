"""What is timed here, and how: `python benchmarks/operator.py --help` is the place to start."""
