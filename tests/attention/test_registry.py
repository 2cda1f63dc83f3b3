"""The registry: what is known, how it is built, and what it says to a mistake."""

import pytest
import torch

from cosformer import attention
from cosformer.registry import Registry
from tests.attention import zoo


def test_what_is_there():
    assert {"cosformer", "softmax"} <= set(attention.names())
    for name in attention.names():
        assert attention.build(name).name == name
        assert attention.traits(name) is type(attention.build(name)).traits
        assert attention.traits(name).paper


def test_an_unknown_name_lists_the_known_ones():
    for f in (attention.build, attention.traits, attention.parameters):
        with pytest.raises(ValueError, match=r"attention must be one of .*cosformer.*softmax.*'cosfromer'"):
            f("cosfromer")


@pytest.mark.parametrize("name", attention.names())
def test_an_unknown_parameter_lists_the_known_ones(name):
    with pytest.raises(ValueError, match=f"attention '{name}' has no parameter 'horizzon'; it takes"):
        attention.build(name, horizzon=3)


def test_parameters_are_typed():
    found = attention.parameters("cosformer")
    assert list(found) == ["horizon", "windows", "eps", "backend", "num_kv_heads"]
    assert found["eps"].annotation is float
    assert found["eps"].default == 1e-6
    assert attention.parameters("identity").keys() == {"eps"}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"horizon": -1}, "horizon must be a positive finite number"),
        ({"eps": "small"}, "eps must be a number"),
        ({"backend": "cuda"}, "backend must be one of"),
    ],
)
def test_wrong_values(parameters, message):
    with pytest.raises((ValueError, TypeError), match=message):
        attention.build("cosformer", **parameters)


def test_what_a_model_offers_is_taken_where_it_is_asked_for():
    offered = {"horizon": 64, "num_heads": 3}
    assert attention.fit("cosformer", {}, **offered).horizon == 64
    assert attention.fit("cosformer", {"horizon": 7}, **offered).horizon == 7
    assert attention.fit("softmax", {}, **offered).name == "softmax"
    with pytest.raises(ValueError, match="no parameter 'num_heads'"):
        attention.fit("cosformer", {"num_heads": 3})


def test_a_name_is_given_once():
    with pytest.raises(ValueError, match="'softmax' is registered already, as Softmax"):
        attention.register("softmax")(attention.Cosformer)
    assert attention.build("softmax").name == "softmax"
    assert attention.build("cosformer").name == "cosformer"


def test_a_needed_parameter_is_named():
    things: Registry[object] = Registry("thing")

    @things.register("box")
    class Box:
        def __init__(self, *, width: int):
            self.width = width

    with pytest.raises(ValueError, match="thing 'box' needs a value for width"):
        things.build("box", {}, {})
    assert things.build("box", {}, {"width": 2}).width == 2


def test_traits_that_contradict_each_other():
    good = attention.traits("softmax").__dict__
    with pytest.raises(ValueError, match="causal or bidirectional"):
        attention.Traits(**good | {"causal": False, "bidirectional": False})
    with pytest.raises(ValueError, match="only for mechanisms that are recurrent"):
        attention.Traits(**good | {"recurrent": False, "constant_state": True})


def test_a_recurrent_mechanism_names_its_state():
    class Forgetful(attention.Softmax):
        state_type = None

    with pytest.raises(TypeError, match="must give a state_type if it is recurrent"):
        attention.register("forgetful")(Forgetful)
    assert "forgetful" not in attention.names()


def test_a_state_of_another_mechanism_is_refused():
    q = torch.randn(1, 4, 2, 8)
    _, state = attention.build("softmax")(q, q, q, causal=True, return_state=True)
    with pytest.raises(TypeError, match=r"state must be a CosformerState .* but got KeyValueState"):
        attention.build("cosformer", horizon=9)(q, q, q, causal=True, state=state)


def test_what_it_can_do_is_known_before_it_is_built(monkeypatch):
    """With whatever parameters: the same as the mechanism itself says."""
    taking = {
        "relu": {"windows": [None]}, "rfa": {"gate": True}, "softmax": {"windows": [None]},
        "synthesizer": {"kind": "random"},
    }  # fmt: skip
    said = [
        (name, parameters, attention.build(name, **parameters).traits)
        for name in attention.names()
        for parameters in (*zoo.variations(name), taking.get(name, {}))
    ]
    assert {name for name, _, traits in said if traits != attention.traits(name)} == set(taking)
    monkeypatch.setattr(attention.Attention, "__init__", None)
    for name, parameters, traits in said:
        assert attention.traits(name, **parameters) == traits, (name, parameters)
