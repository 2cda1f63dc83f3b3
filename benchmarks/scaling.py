"""One sequence over 1 to 1,024 GPUs, on paper: bytes sent and time of one attention layer.

    python -m benchmarks.scaling --out benchmarks/reports/scaling-20261117.json

Nothing is timed here. The speed of the operator, of softmax attention and of the memory are those of the
newest record of the operator on a GPU; the links between GPUs are assumed (`ASSUMED`); the rest is arithmetic
(docs/scaling.md has the formulas), forward and backward together.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from benchmarks.record import check_out, header, publish
from benchmarks.terminal import Parser
from cosformer.report import records, render
from cosformer.report.sections import scaling
from cosformer.report.sections.common import PHASE, latest

REPORTS = Path(__file__).parent / "reports"
DIM = 128
TOKENS = (8192, 131072, 1048576, 10**7, 10**8)
GPUS = tuple(2**n for n in range(11))
ASSUMED = {
    "node_gpus": 8,
    "node_bytes_s": 450e9,  # NVLink 4, each direction
    "node_message_s": 3e-6,
    "network_bytes_s": 50e9,  # 400 Gb/s a GPU
    "network_message_s": 10e-6,
    "shortest_call_s": 100e-6,  # launches of a forward and a backward, however short the shard
}
# Tensors as large as the keys that a rank moves to sum its keys into a state and to get their gradients: k
# and v forward, them and dk and dv backward, and dk and dv once more added to those of the call itself.
STATE_PASS_TENSORS = 2 + 4 + 6

Record = dict[str, Any]


def measured(folder: Path) -> Record:
    """What the newest record of the operator on a GPU says."""
    record = latest(records.benchmarks(folder), "cosformer operator benchmark on a GPU")
    if record is None:
        raise SystemExit(
            f"{folder} has no record of the operator on a GPU: run benchmarks/operator.py there."
        )

    def longest(contender: str) -> Record:
        own = (
            t for t in record["gpu"]["timings"]
            if (t["contender"], t["dim"], t["mode"], t["phase"]) == (contender, DIM, "causal", PHASE)
            and t["batch"] == 1 and "median_s" in t
        )  # fmt: skip
        found = max(own, key=lambda t: t["length"])
        return {"length": found["length"], "seconds": found["median_s"]}

    return {
        "record": record["stem"], "gpu": record["hardware"]["gpu"], "heads": record["settings"]["heads"],
        "dim": DIM, "dtype": record["settings"]["dtype"], "memory_bytes_s": record["gpu"]["bytes_per_second"],
        "cosformer": longest("cosformer"), "softmax": longest("sdpa"),
    }  # fmt: skip


def simulate(measured: Record, assumed: Record, tokens: Iterable[int], gpus: Iterable[int]) -> list[Record]:
    """Bytes that one GPU sends and seconds that one layer takes, for every length and number of GPUs."""
    heads, dim = measured["heads"], measured["dim"]
    state = heads * 2 * dim * (dim + 1) * 4
    gpus = tuple(gpus)
    rows = []
    for total in tokens:
        for n in gpus:
            where = "node" if n <= assumed["node_gpus"] else "network"
            rate, delay = assumed[f"{where}_bytes_s"], assumed[f"{where}_message_s"]
            keys = total / n * heads * dim * 2

            def network(sent: float, messages: int, rate: float = rate, delay: float = delay) -> float:
                return messages * delay + sent / rate

            sent = 2.0 * (n - 1) * state
            work = measured["cosformer"]["seconds"] / measured["cosformer"]["length"] * total / n
            work += 0 if n == 1 else STATE_PASS_TENSORS * keys / measured["memory_bytes_s"]
            work, waits = max(work, assumed["shortest_call_s"]), network(sent, 2 * (n - 1))
            rows.append(_row("split", total, n, sent, work, waits, work + waits))

            sent = 3 * 2 * (n - 1) * keys
            work = measured["softmax"]["seconds"] * (total / measured["softmax"]["length"]) ** 2 / n
            work, waits = max(work, assumed["shortest_call_s"]), network(sent, 3 * (n - 1))
            rows.append(_row("ring", total, n, sent, work, waits, max(work, waits)))
    return rows


def _row(
    method: str, tokens: int, gpus: int, sent: float, work: float, network: float, total: float
) -> Record:
    return {
        "method": method, "tokens": tokens, "gpus": gpus, "bytes": sent, "work_s": work,
        "network_s": network, "seconds": total,
    }  # fmt: skip


def main(words: list[str] | None = None) -> None:
    p = Parser(prog="python -m benchmarks.scaling", description=__doc__)
    p.add_argument("--records", type=Path, default=REPORTS, help="the folder with the operator's record")
    p.add_argument("--out", type=Path, help="where the record goes (default: nowhere)")
    args = p.parse_args(words)
    check_out(p, args.out)
    found = measured(args.records)
    data = header(scaling.FORMAT, torch.device("cpu")) | {
        "command": "python -m benchmarks.scaling",
        "settings": {"tokens": list(TOKENS), "gpus": list(GPUS)},
        "measured": found,
        "assumed": ASSUMED,
        "rows": simulate(found, ASSUMED, TOKENS, GPUS),
    }
    if args.out is None:
        print(render.terminal(scaling.document(data)))
    else:
        publish(data, scaling.document, args.out)


if __name__ == "__main__":
    main()
