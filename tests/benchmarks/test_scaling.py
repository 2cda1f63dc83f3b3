"""The simulation of many GPUs: what it sends is what the operator sends, and what grows is what should."""

import pytest

from benchmarks import scaling


@pytest.fixture(scope="module")
def rows():
    made = scaling.simulate(scaling.measured(scaling.REPORTS), scaling.ASSUMED, scaling.TOKENS, scaling.GPUS)
    return {(r["method"], r["tokens"], r["gpus"]): r for r in made}


def test_bytes(rows):
    """Ours by the formula that tests/distributed/test_exchange.py counts, and not by the length."""
    heads, dim = 16, 128
    state = heads * 2 * dim * (dim + 1) * 4
    for tokens in scaling.TOKENS:
        assert rows["split", tokens, 64]["bytes"] == 2 * 63 * state
        keys = 2 * heads * dim * 2 * tokens
        assert rows["ring", tokens, 64]["bytes"] == pytest.approx(3 * 63 / 64 * keys)


def test_time(rows):
    """One GPU takes what was measured; the work is divided, the network is not."""
    one = scaling.measured(scaling.REPORTS)
    assert rows["split", 1048576, 1]["seconds"] == one["cosformer"]["seconds"]
    assert rows["ring", 131072, 1]["seconds"] == pytest.approx(4 * one["softmax"]["seconds"])
    long = rows["split", 10**8, 8]
    assert long["network_s"] < 0.01 * long["work_s"] < long["seconds"]
    many = rows["split", 8192, 1024]
    assert many["network_s"] > 100 * many["work_s"]


def test_printed(capsys, tmp_path):
    scaling.main([])
    assert "100 million" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no record of the operator"):
        scaling.main(["--records", str(tmp_path)])
