"""The paper's tables, re-run: the next runs that have no record, as many as fit into some minutes.

    PYTHONPATH=src python3 -m benchmarks.evidence --minutes 9 --plan lm,lra --jobs 3 --out FOLDER

Several runs are trained side by side on one GPU. What is cut off by the deadline goes on next time, if the
folder of the runs is still there. `--dry-run` shows the plan, and which data files are needed.
"""

from benchmarks import time_slice
from benchmarks.evidence_plan import PLANS

if __name__ == "__main__":
    time_slice.main("python -m benchmarks.evidence", __doc__.splitlines()[0], PLANS)
