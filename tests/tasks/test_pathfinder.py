"""Pathfinder: the label follows from the picture, and nothing else follows from the label."""

from dataclasses import replace

import numpy as np
import PIL.Image
import pytest

from cosformer import tasks
from cosformer.tasks.lra import pathfinder
from cosformer.tasks.lra.pathfinder_drawing import draw
from cosformer.tasks.lra.pathfinder_snakes import Snakes, distances

STIMULI = {
    "pathfinder": tasks.build("pathfinder").stimulus,
    "pathx": tasks.build("pathx").stimulus,
    "toy": tasks.build("pathfinder", side=8).stimulus,
    "straighter toy": tasks.build("pathx", side=8).stimulus,
}
NAMES = list(STIMULI)


def scene(name, count, seed=0):
    stimulus = STIMULI[name]
    return stimulus, *pathfinder.scenes(stimulus, seed, 0, count)


@pytest.fixture(autouse=True)
def _larger_jobs(monkeypatch):
    monkeypatch.setattr(pathfinder, "_PER_JOB", 32)


def between(snakes):
    """[N, P, P]: how near the middle lines of two paddles come, by points along one of them."""
    along = np.linspace(0, 1, 7)[:, None]
    points = snakes.starts[:, :, None] + (snakes.ends - snakes.starts)[:, :, None] * along
    found = distances(points[:, :, None], snakes.starts[:, None, :, None], snakes.ends[:, None, :, None]).min(
        -1
    )
    return np.minimum(found, found.swapaxes(1, 2))


@pytest.mark.parametrize("name", NAMES)
def test_no_snake_comes_as_near_to_another_as_its_own_paddles_are(name):
    stimulus, snakes, _, _ = scene(name, 24)
    long, short = stimulus.paddles, stimulus.distractor_paddles
    owner = np.repeat(np.arange(2 + stimulus.distractors), [long, long, *[short] * stimulus.distractors])
    apart = between(snakes)
    same = owner[:, None] == owner
    neighbours = same & (abs(np.subtract.outer(np.arange(len(owner)), np.arange(len(owner)))) == 1)
    np.testing.assert_allclose(apart[:, neighbours], stimulus.gap, atol=1e-9)
    # Between the rims, not the middle lines: what is dark between two snakes is wider than any gap.
    assert apart[:, ~same].min() - stimulus.thickness > 1.1 * stimulus.gap
    assert apart[:, same & ~neighbours & ~np.eye(len(owner), dtype=bool)].min(initial=np.inf) > stimulus.gap


def grown(mask, radius):
    """A mask [N, h, w], wider by a radius."""
    reach = int(radius)
    wide, out = np.pad(mask, ((0, 0), (reach, reach), (reach, reach))), np.zeros_like(mask)
    for dy in range(-reach, reach + 1):
        for dx in range(-reach, reach + 1):
            if dx * dx + dy * dy <= radius * radius:
                out |= wide[:, reach + dy :, reach + dx :][:, : mask.shape[1], : mask.shape[2]]
    return out


def connected(mask, start, end):
    """Whether a path of neighbouring pixels of mask [h, w] leads from one to the other."""
    todo, seen = [start], {start}
    while todo:
        y, x = todo.pop()
        if (y, x) == end:
            return True
        for place in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
            if place not in seen and mask[place]:
                seen.add(place)
                todo.append(place)
    return False


@pytest.mark.parametrize(
    ("name", "zoom", "count"),
    [("pathfinder", 8, 12), ("pathx", 4, 4), ("toy", 16, 12), ("straighter toy", 16, 12)],
)
def test_the_label_follows_from_the_picture(name, zoom, count):
    """One who sees the picture large closes the gaps between paddles, and follows the line."""
    stimulus, snakes, discs, labels = scene(name, count)
    lengths = ("side", "paddle_length", "thickness", "gap", "disc")
    large = replace(stimulus, **{k: zoom * getattr(stimulus, k) for k in lengths})
    pictures = draw(Snakes(zoom * snakes.starts, zoom * snakes.ends), large, zoom * discs)
    lines = grown(pictures > 100, large.gap * 0.54)
    places = (zoom * discs[..., ::-1]).astype(int).tolist()
    found = [connected(line, *map(tuple, ends)) for line, ends in zip(lines, places, strict=True)]
    assert found == (labels == 1).tolist()
    assert 0 < labels.sum() < count


@pytest.mark.parametrize("name", NAMES)
def test_discs_lie_on_tips_of_long_snakes(name):
    stimulus, snakes, discs, labels = scene(name, 24)
    n = stimulus.paddles
    origins = np.stack([snakes.starts[:, 0], snakes.starts[:, n]], 1)
    ends = np.stack([snakes.ends[:, n - 1], snakes.ends[:, 2 * n - 1]], 1)
    first = (origins == discs[:, :1]).all(2)
    second = (ends == discs[:, 1:]).all(2)
    assert (first.sum(1) == 1).all()
    assert (second.sum(1) == 1).all()
    np.testing.assert_array_equal(first.argmax(1) == second.argmax(1), labels == 1)
    distance = np.linalg.norm(origins[:, 0] - origins[:, 1], axis=1)
    np.testing.assert_allclose(distance, stimulus.apart)
    away = distances(discs[:, :, None], snakes.starts[:, None], snakes.ends[:, None])
    theirs = np.repeat([0, 1, 2], [n, n, stimulus.total - 2 * n])
    for disc, own in enumerate((first.argmax(1), second.argmax(1))):
        foreign = away[:, disc][theirs != own[:, None]]
        assert foreign.min() - stimulus.disc - stimulus.thickness / 2 > 1.1 * stimulus.gap
    inside = stimulus.border + stimulus.disc
    assert discs.min() >= inside - 1e-9
    assert discs.max() <= stimulus.side - inside + 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_where_snakes_begin(name):
    """As published, the first no nearer to an edge than twice the distance of the two: near the middle."""
    stimulus, snakes, _, _ = scene(name, 24)
    inset = {"pathfinder": 14, "pathx": 40}.get(name, 1.25)
    assert stimulus.inset == inset
    first = snakes.starts[:, 0]
    assert first.min() >= inset
    assert first.max() <= stimulus.side - inset
    assert np.ptp(first) > 0.7 * (stimulus.side - 2 * inset)


def test_other_sides_are_refused():
    with pytest.raises(ValueError, match="side must be 32 or 8, but got 16"):
        tasks.build("pathfinder", side=16)
    with pytest.raises(ValueError, match="side must be 128 or 8, but got 32"):
        tasks.build("pathx", side=32)


def test_turns_are_as_likely_as_published():
    """Straight on is likelier than a turn of 60 degrees by about cos^2(0) / cos^2(60) = 4."""
    stimulus, snakes, _, _ = scene("pathfinder", 60)
    step = (snakes.ends - snakes.starts)[:, : stimulus.paddles]
    angle = np.degrees(np.arctan2(step[..., 1], step[..., 0]))
    turn = abs((np.diff(angle, axis=1) + 180) % 360 - 180)
    assert turn.max() < 90 + 1e-6
    straight, sharp = (turn < 4).sum(), ((turn > 56) & (turn < 64)).sum() / 2
    assert 2 < straight / sharp < 8


def pictures(name="pathfinder", **settings):
    small = {"train_rows": 150, "valid_rows": 20, "test_rows": 20}
    return tasks.build(name, **small | settings).dataset("train")


def test_the_same_bytes_on_any_number_of_cores(monkeypatch, tmp_path):
    found = []
    for workers in ("1", "2"):
        monkeypatch.setenv("COSFORMER_WORKERS", workers)
        monkeypatch.setenv("COSFORMER_CACHE", str(tmp_path / workers))
        rows = pictures(train_rows=70)
        found.append((rows.pictures.tobytes(), rows.labels.tobytes()))
    assert found[0] == found[1]
    assert pictures(train_rows=70, seed=1).pictures.tobytes() != found[0][0]


def test_labels_and_pictures():
    rows = pictures()
    assert 45 < rows.labels.sum() < 105, "balanced: within five standard deviations of a half"
    assert rows.pictures.max((1, 2)).min() == 255
    light = rows.pictures.mean((1, 2))
    joined, apart = light[rows.labels == 1], light[rows.labels == 0]
    assert abs(joined.mean() - apart.mean()) < 3 * light.std() * np.sqrt(1 / len(joined) + 1 / len(apart))
    assert len(np.unique(rows.pictures.reshape(len(rows), -1), axis=0)) == len(rows)


def test_contact_sheet(tmp_path):
    path = tmp_path / "sheet.png"
    tasks.contact_sheet(tasks.build("pathfinder"), path, across=4, down=2)
    sheet = np.array(PIL.Image.open(path))
    assert sheet.shape == (4 * 130 + 6, 4 * 130)
    assert (sheet[2 * 130 : 2 * 130 + 6] == 255).all(), "a line between label 1 and label 0"
