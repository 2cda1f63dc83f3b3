"""Stochastic positions: products of coded queries and keys are, in expectation, a kernel of the distance."""

import pytest
import torch

from cosformer import attention, positions, random_features
from cosformer.models import CosformerForCausalLM
from tests.models.tiny import build, close, tokens

KINDS = ("sine", "conv")
DIM = 5


def position(kind, **changes):
    """With random parameters: kernels of no particular symmetry."""
    settings = {"head_dim": DIM, "max_length": 64, "num_kv_heads": 2, "kind": kind, "taps": 9}
    made = positions.build("stochastic", **settings | changes).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.5)
    return made


def rotate(made, x, at, **options):
    return made.rotation(at)(x, **options)


@torch.no_grad()
def products(made, at, places):
    """q^ at position `at` times k^ at each place: [heads, places], from one draw."""
    generator = torch.Generator().manual_seed(5)
    q, k = torch.randn(2, 1, 1, 2, DIM, generator=generator, dtype=torch.float64)
    left = rotate(made, q, torch.tensor([[at]]))
    right = rotate(made, k.expand(1, len(places), -1, -1), torch.tensor([places]), key=True)
    expected = torch.einsum("hd,hd,hdt->ht", q[0, 0], k[0, 0], made.kernel(at - torch.tensor(places)))
    return torch.einsum("hr,thr->ht", left[0, 0], right[0]), expected


@pytest.mark.parametrize("kind", KINDS)
def test_the_expected_kernel_depends_on_the_distance_alone(kind):
    """Monte Carlo: the mean over draws lies within five of its standard errors of sum_d q_d k_d P_d(m - n),
    at the beginning of a text and far into it."""
    made = position(kind, realisations=256)
    distances = torch.arange(-7, 8)
    means, errors = [], []
    for at in (8, 31):
        found = []
        for _ in range(200):
            made.resample()
            estimate, expected = products(made, at, (at - distances).tolist())
            found.append(estimate)
        found = torch.stack(found)
        error = found.std(0) / len(found) ** 0.5
        assert ((found.mean(0) - expected).abs() < 5 * error).all()
        assert expected.std() > 10 * error.mean(), "the kernel is told apart from a constant one"
        means.append(found.mean(0))
        errors.append(error)
    assert ((means[0] - means[1]).abs() < 5 * (errors[0] ** 2 + errors[1] ** 2).sqrt()).all()


@pytest.mark.parametrize("kind", KINDS)
def test_more_realisations_are_nearer_to_the_kernel(kind):
    """The error falls like R^(-1/2)."""
    sizes = torch.tensor([16, 64, 256, 1024])
    errors = []
    for size in sizes.tolist():
        torch.manual_seed(1)  # the same kernel each time
        made = position(kind, realisations=size)
        squares = []
        for _ in range(40):
            made.resample()
            estimate, expected = products(made, 20, [18, 19, 20, 21, 23])
            squares.append((estimate - expected).square().mean())
        errors.append(torch.stack(squares).mean().sqrt() / expected.norm())
    x, y = sizes.double().log(), torch.stack(errors).log()
    slope = ((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum()
    assert -0.65 < slope < -0.35, slope


@pytest.mark.parametrize("kind", KINDS)
def test_codes_follow_positions_and_nothing_else(kind):
    made = position(kind)
    x, at = (
        torch.randn(2, 6, 4, DIM, dtype=torch.float64),
        torch.tensor([[0, 1, 2, 3, 4, 5], [7, 3, 9, 0, 1, 63]]),
    )
    for key in (False, True):
        whole = rotate(made, x, at, key=key)
        for b, t in ((0, 3), (1, 5)):
            one = rotate(made, x[b : b + 1, t : t + 1], at[b : b + 1, t : t + 1], key=key)
            close(one[0, 0], whole[b, t])


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind):
    made = position(kind)
    x, at = torch.randn(1, 3, 2, DIM, dtype=torch.float64, requires_grad=True), torch.tensor([[4, 5, 9]])
    inputs = (x, *made.parameters())

    def products_of(*_):
        return (rotate(made, x, at) * rotate(made, x.flip(1), at, key=True)).sum(-1)

    assert torch.autograd.gradcheck(products_of, inputs)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_drawn_kept_and_drawn_again(kind):
    x, at = torch.randn(1, 4, 2, DIM, dtype=torch.float64), torch.arange(4)[None]

    def seeded(seed):
        torch.manual_seed(seed)
        return position(kind, redraw_interval=3)

    one, same, other = seeded(1), seeded(1), seeded(2)
    assert torch.equal(rotate(one, x, at), rotate(same, x, at))
    assert not torch.equal(rotate(one, x, at), rotate(other, x, at))
    other.load_state_dict(one.state_dict())
    assert torch.equal(rotate(one, x, at), rotate(other, x, at))
    before = rotate(one, x, at)
    assert random_features.resample(one, step=4) == 0
    assert torch.equal(rotate(one, x, at), before)
    assert random_features.resample(one, step=6) == 1
    assert not torch.equal(rotate(one, x, at), before)


LINEAR = [n for n in attention.names() if attention.traits(n).constant_state and attention.traits(n).causal]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mechanism", LINEAR)
def test_a_model_decodes_with_it(mechanism, kind, tmp_path):
    parameters = {"kind": kind, "taps": 7}
    model = build(CosformerForCausalLM, attention=mechanism, position="stochastic", num_key_value_heads=2,
                  position_parameters=parameters)  # fmt: skip
    ids = tokens(2, 11)
    whole = model(ids).logits
    start = model(ids[:, :6], use_cache=True)
    rest = model(ids[:, 6:], past_key_values=start.past_key_values).logits
    close(torch.cat([start.logits, rest], 1), whole)
    model.save_pretrained(tmp_path)
    again = CosformerForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    close(again(ids).logits, whole)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"kind": "cosine"}, "kind of stochastic position must be one of sine, conv"),
        ({"taps": 0}, "taps must be a positive int"),
        ({"redraw_interval": 0}, "redraw_interval must be a positive int"),
    ],
)
def test_mistakes(parameters, message):
    with pytest.raises(ValueError, match=message):
        positions.build("stochastic", head_dim=4, max_length=8, **parameters)


def test_heads_that_do_not_fit():
    made = positions.build("stochastic", head_dim=4, max_length=8, num_kv_heads=2)
    with pytest.raises(ValueError, match="heads of 4, in multiples of 2"):
        rotate(made, torch.zeros(1, 1, 3, 4), torch.zeros(1, 1, dtype=torch.int64))
