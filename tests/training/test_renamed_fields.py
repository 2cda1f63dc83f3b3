"""Renamed fields of a run: what was written with the old names is read, and is the same experiment."""

import json
from pathlib import Path

import pytest

from cosformer.record_format import RENAMED_FIELDS
from cosformer.report.sections.runs import flat
from cosformer.training import recipes
from cosformer.training.folder import RUN, begun
from cosformer.training.run import Run, digest
from tests.training.toy import toy

OLD = {new: old for old, new in RENAMED_FIELDS.items()}
RECORDS = [
    json.loads(line)
    for path in sorted((Path(__file__).parents[2] / "results").glob("*.jsonl"))
    for line in path.read_text().splitlines()
]


def with_old_names(settings):
    return {OLD.get(name, name): value for name, value in settings.items()}


def test_recorded_runs_are_read_and_keep_their_digests():
    assert any("batch" in r["settings"] for r in RECORDS)
    planned = [r for r in RECORDS if "experiment" in r]
    assert len(planned) > 20
    for record in planned:
        assert digest(Run.from_dict(record["settings"])) == record["experiment"]["digest"]


def test_the_folder_of_an_earlier_run_is_the_same_run(tmp_path):
    run = toy(max_grad_norm=0.5, save_total_limit=3)
    saved = {"id": "a", "run": with_old_names(run.to_dict())}
    assert {"batch", "eval_batch", "clip", "keep"} < set(saved["run"])
    (tmp_path / RUN).write_text(json.dumps(saved))
    assert begun(tmp_path) == ("a", run)


def test_recipes_take_both_names():
    new = recipes.build("mqar", scale="tiny", batch_size=4, eval_batch_size=8)
    assert recipes.build("mqar", scale="tiny", batch=4, eval_batch=8) == new
    assert new.replace(clip=0.5) == new.replace(max_grad_norm=0.5)
    with pytest.raises(ValueError, match="batch is the old name of batch_size"):
        recipes.build("mqar", scale="tiny", batch=4, batch_size=4)


def test_reports_count_both_names_as_one_experiment():
    settings = toy().to_dict()
    assert flat(with_old_names(settings)) == flat(settings)
