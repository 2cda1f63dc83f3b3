"""The registry: what is known, how it is built, and what it says to a mistake."""

import dataclasses

import pytest

from cosformer import tasks


def test_unknown_names_and_settings_say_what_was_meant():
    with pytest.raises(
        ValueError, match=r"task must be one of .*mqar.*, but got 'mqr'. Did you mean 'mqar'\?"
    ):
        tasks.build("mqr")
    with pytest.raises(
        ValueError, match=r"'mqar' has no parameter 'lenght'; it takes .*Did you mean 'length'\?"
    ):
        tasks.build("mqar", lenght=3)


@pytest.mark.parametrize("name", tasks.names())
def test_a_task_is_a_frozen_dataclass_that_explains_itself(name):
    cls = tasks.get(name)
    assert cls.name == name
    assert cls.title
    assert "Provenance:" in cls.__doc__
    assert all(p.default is not p.empty for p in tasks.parameters(name).values()), (
        "every setting has a default"
    )
    task = tasks.build(name)
    assert task == tasks.build(name)
    with pytest.raises(dataclasses.FrozenInstanceError):
        task.title = "another"
