"""The study of the models on enwik8: windows, convolution, gate, norms, positions, mixed layers, controls.

    PYTHONPATH=src python3 -m benchmarks.ablation --minutes 9 --jobs 3 --out FOLDER

Takes the next runs that have no record, in the order of the plan, until the time is over. `--dry-run` shows
the plan, what is available, and which data files are needed.
"""

from benchmarks import time_slice
from benchmarks.enwik8_plan import at_8192, long, short

PLANS = {"short": short, "long": long, "8192": at_8192}

if __name__ == "__main__":
    time_slice.main("python -m benchmarks.ablation", __doc__.splitlines()[0], PLANS)
