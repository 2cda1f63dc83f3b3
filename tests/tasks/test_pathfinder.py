"""Pathfinder by the published rules, replayed a paddle at a time; light says nothing of the label."""

import math
from dataclasses import replace

import numpy as np
import PIL.Image
import PIL.ImageDraw
import pytest

from cosformer import tasks
from cosformer.tasks.lra import pathfinder
from cosformer.tasks.lra.pathfinder_glyphs import DEGREES, Discs, dilated, glyphs
from cosformer.tasks.lra.pathfinder_snakes import Snakes, _distractor, _long_snakes, grow

STIMULI = {
    "pathfinder": tasks.build("pathfinder").stimulus,
    "pathx": tasks.build("pathx").stimulus,
    "toy": tasks.build("pathfinder", side=8).stimulus,
    "straighter toy": tasks.build("pathx", side=8).stimulus,
}
NAMES = list(STIMULI)


@pytest.fixture(autouse=True)
def _larger_jobs(monkeypatch):
    monkeypatch.setattr(pathfinder, "_PER_JOB", 32)


def grown(name, count=0, margin=0, **changed):
    s = replace(STIMULI[name], **changed)
    g = glyphs(s, margin or s.margins[0])
    return s, g, grow(np.random.default_rng(0), s, g, count or {"pathx": 3}.get(name, 24))


def angle_of(g, kind):
    return math.pi * (kind - 180) / 180 if kind < DEGREES else math.atan2(*g.candidates[kind - DEGREES])


def moved(point, angle, distance):
    y, x = point
    return math.ceil(y + distance * math.sin(angle)), math.ceil(x + distance * math.cos(angle))


def back(angle):
    return angle + math.pi if angle < 0 else angle - math.pi


def placed(s, glyph, start):
    """float [side, side]: one glyph on a picture."""
    reach, out = len(glyph) // 2, np.zeros((s.side + 2 * len(glyph),) * 2)
    y, x = (int(v) + len(glyph) - reach for v in start)
    out[y : y + len(glyph), x : x + len(glyph)] = glyph / 255
    return out[len(glyph) : -len(glyph), len(glyph) : -len(glyph)]


def around(s, pivot, angle, margin, taken):
    """The candidates around a pivot: their weights, and their turns."""
    weights, turns, radius = {}, {}, s.paddle_length + margin
    for k in range(math.ceil(2 * math.pi * radius)):
        y, x = pivot[0] + radius * math.sin(k / radius), pivot[1] + radius * math.cos(k / radius)
        if 0 <= y < s.side and 0 <= x < s.side:
            end = int(y), int(x)
            turn = abs(math.atan2(end[0] - pivot[0], end[1] - pivot[1]) - angle)
            turns[end] = min(turn, 2 * math.pi - turn)
            cosine = math.cos(min(s.continuity * turns[end], math.pi / 2))
            weights[end] = cosine**2 * (1 - taken[end])
    return weights, turns


def replay(s, g, starts, kinds):
    """Lays the paddles of one picture again, in their order: for each later one its end, weights and turns of
    all candidates, and the sum of mask and paddle; of each distractor what it lies on."""
    mask = np.ones((s.side, s.side))
    mask[s.padding : -s.padding, s.padding : -s.padding] = 0
    n, later, beneath, pivots = s.paddles, [], [], {}
    long = [i + first for i in range(n) for first in (0, n)]
    short = [i for i in range(2 * n, s.total) if kinds[i] >= 0]
    for i in [*long, *short]:
        start, angle = tuple(starts[i].tolist()), angle_of(g, kinds[i])
        if i in short[:1]:
            mask = np.maximum(mask, placed(s, g.masks[kinds[2 * n - 1]], starts[2 * n - 1]))
        if i in (0, n) or (i >= 2 * n and (i - 2 * n) % s.distractor_paddles == 0):
            assert kinds[i] < DEGREES
            if i >= 2 * n:
                beneath.append(mask[tuple((start + g.cores[kinds[i]]).T)].max())
            pivots[i] = moved(moved(start, angle, s.paddle_length), back(angle), s.paddle_length + g.margin)
            continue
        last = angle_of(g, kinds[i - 1])
        pivots[i] = moved(pivots[i - 1], last, s.paddle_length + 2 * g.margin)
        weights, turns = around(s, pivots[i], last, g.margin, dilated(mask, g.margin))
        own = placed(s, g.masks[kinds[i]], start)
        assert math.isclose(angle, math.atan2(*np.subtract(start, pivots[i])))
        later.append((start, weights, turns, (mask + own).max()))
        mask = np.maximum(mask, placed(s, g.masks[kinds[i - 1]], starts[i - 1]))
        if i >= 2 * n and (i + 1 - 2 * n) % s.distractor_paddles == 0:
            mask = np.maximum(mask, own)
    return later, beneath


@pytest.mark.parametrize(("name", "margin"), [*[(name, 0) for name in NAMES], ("pathx", 3)])
def test_every_paddle_is_laid_by_the_rules(name, margin):
    s, g, snakes = grown(name, 0 if name != "pathfinder" else 12, margin)
    steps = 0
    for starts, kinds in zip(snakes.starts, snakes.kinds, strict=True):
        later, beneath = replay(s, g, starts, kinds)
        for end, weights, _, overlap in later:
            assert weights[end] > 0
            assert overlap < 1.8
        assert max(beneath, default=0) <= 0.3
        laid = (kinds[2 * s.paddles :] >= 0).reshape(s.distractors, s.distractor_paddles)
        assert (laid == laid[:, :1]).all()
        assert len(later) == (kinds >= 0).sum() - 2 - laid[:, 0].sum()
        steps += len(later)
    assert steps


@pytest.mark.parametrize("continuity", [1.0, 1.8])
def test_turns_are_as_likely_as_published(continuity):
    """Of snakes too short to be given up: the turn against cos^2(continuity * turn) and what is free."""
    s, g, snakes = grown("pathfinder", 400, paddles=2, distractors=0, continuity=continuity)
    sums = np.zeros(3)
    for starts, kinds in zip(snakes.starts, snakes.kinds, strict=True):
        for end, weights, turns, _ in replay(s, g, starts, kinds)[0]:
            w, t = np.array([*weights.values()]), np.array([*turns.values()])
            mean = (w * t).sum() / w.sum()
            sums += turns[end] - mean, (w * (t - mean) ** 2).sum() / w.sum(), 1
    assert sums[2] == 800
    assert abs(sums[0]) < 3.5 * math.sqrt(sums[1])


@pytest.mark.parametrize("name", NAMES)
def test_gaps_within_a_snake(name):
    """About twice the margin: points are rounded up twice on the way from one paddle to the next."""
    s, g, snakes = grown(name)
    inner = np.delete(np.arange(1, 2 * s.paddles), s.paddles - 1)
    along = g.forwards[snakes.kinds]
    ends = np.where(
        (snakes.kinds < DEGREES)[..., None], snakes.starts + s.paddle_length * along, snakes.starts
    )
    near = snakes.starts[:, inner] - s.paddle_length * along[:, inner]
    gaps = np.linalg.norm(near - ends[:, inner - 1], axis=-1)
    assert abs(gaps - 2 * g.margin).max() < 2.5
    assert abs(gaps.mean() - 2 * g.margin) < 0.6


@pytest.mark.parametrize("name", NAMES)
def test_where_snakes_begin(name):
    s, g, snakes = grown(name)
    first, second = snakes.starts[:, 0], snakes.starts[:, s.paddles]
    assert s.inset == {"pathfinder": 14, "pathx": 40}.get(name, 2)
    shift = 1 if name in ("pathfinder", "pathx") else 0
    assert first.min() >= s.inset - 1 + shift
    assert first.max() < s.side - s.inset
    assert abs(np.linalg.norm(first - second, axis=1) - s.apart).max() <= math.sqrt(0.5)
    for tip, kind in zip(first, snakes.kinds[:, 0], strict=True):
        inside = np.abs(tip + g.cores[kind] - (s.side - 1) / 2)
        assert inside.max() < s.side / 2 - s.inset, "its paddle too"


def test_orientations_that_the_published_search_takes():
    s = STIMULI["pathfinder"]
    assert (np.flatnonzero(glyphs(s, 1).searched) - 180).tolist() == list(range(-150, -120))
    assert glyphs(replace(s, corner_rule=False), 1).searched.all()
    s, g, snakes = grown("pathfinder", 60)
    firsts = snakes.kinds[:, [0, *range(2 * s.paddles, s.total, s.distractor_paddles)]]
    assert g.searched[firsts[firsts >= 0]].all()
    assert not g.searched[snakes.kinds[:, s.paddles]].all(), "the second snake is not searched for"


def test_as_many_distractors_as_published():
    """On average, by a port of the published rules."""
    for rule, expected in ((True, 1.15), (False, 4.6)):
        s, _, snakes = grown("pathfinder", 128, corner_rule=rule)
        laid = (snakes.kinds[:, 2 * s.paddles :: s.distractor_paddles] >= 0).sum(1)
        assert abs(laid.mean() - expected) < 4 * laid.std() / math.sqrt(128)


def test_attempts_at_distractors_leave_nothing():
    s = replace(STIMULI["pathfinder"], corner_rule=False)
    field = _long_snakes(np.random.default_rng(0), s, glyphs(s, 1), 1000)
    inner = slice(field.rim, -field.rim)
    for first in range(2 * s.paddles, s.total, s.distractor_paddles):
        expected = field.mask[:, inner, inner] / 255
        _distractor(field, first)
        for k, i in np.argwhere(field.kinds[:, first : first + s.distractor_paddles] >= 0):
            own = placed(s, field.glyphs.masks[field.kinds[k, first + i]], field.starts[k, first + i])
            expected[k] = np.maximum(expected[k], own)
        np.testing.assert_array_equal(field.mask[:, inner, inner] / 255, expected)
    for mask, near in zip(field.mask, field.near, strict=True):
        np.testing.assert_array_equal(near[inner, inner], dilated(mask, 1)[inner, inner])
    assert (field.kinds < 0).any()


def drawn_by_pil(g, s, kind):
    """Paddle and mask of one kind: a line at twice the size, and what is near it."""
    middle, angle = 2 * g.reach, angle_of(g, kind)
    y, x = moved((middle, middle), angle if kind < DEGREES else back(angle), 2 * s.paddle_length)
    image = PIL.Image.new("L", (2 * middle + 1,) * 2)
    PIL.ImageDraw.Draw(image).line([(middle, middle), (x, y)], fill=255, width=round(2 * s.thickness))
    found = [image, PIL.Image.fromarray(dilated(np.array(image), 2 * g.margin))]
    return [np.array(i.resize((2 * g.reach + 1,) * 2, PIL.Image.Resampling.LANCZOS)) for i in found]


@pytest.mark.parametrize("name", ["pathfinder", "pathx", "toy"])
def test_glyphs_are_those_of_another_drawing(name):
    s = STIMULI[name]
    for margin in s.margins:
        g = glyphs(s, margin)
        for kind in [*range(0, DEGREES, 15), *range(DEGREES, len(g.lines))]:
            line, mask = drawn_by_pil(g, s, kind)
            np.testing.assert_array_equal(g.lines[kind], line)
            np.testing.assert_array_equal(g.masks[kind], mask)


@pytest.mark.parametrize("name", ["pathfinder", "pathx", "toy"])
def test_discs_are_those_of_another_drawing(name):
    s = STIMULI[name]
    table, at = Discs(s), np.arange(2 * s.side)
    for y, x in ((2, 2), (s.side // 2, 3), (s.side - 2, s.side // 2), (0, s.side - 1), (4, 5)):
        inside = (at[:, None] - 2 * y) ** 2 + (at - 2 * x) ** 2 <= (2 * s.disc) ** 2
        image = PIL.Image.fromarray(inside * np.uint8(255))
        own = placed(s, table.at(np.array([[y, x]]))[0], (y, x))
        np.testing.assert_array_equal(own * 255, image.resize((s.side,) * 2, PIL.Image.Resampling.LANCZOS))


@pytest.mark.parametrize("name", NAMES)
def test_discs_lie_on_tips_of_long_snakes(name):
    s, g, snakes = grown(name)
    n, count = s.paddles, len(snakes.kinds)
    first, label = np.random.default_rng(1).integers(0, 2, (2, count))
    tips = pathfinder.tips(snakes, s, first, label)
    for k in range(count):
        other = first[k] if label[k] else 1 - first[k]
        assert tips[k, 0].tolist() == snakes.starts[k, first[k] * n].tolist()
        assert tips[k, 1].tolist() == snakes.starts[k, other * n + n - 1].tolist()
    pictures = pathfinder.draw(snakes, s, g, tips)
    bare = pathfinder.draw(snakes, s, g, tips[:, :1].repeat(2, 1))
    assert (pictures[np.arange(count), tips[:, 1, 0], tips[:, 1, 1]] > 150).all()
    apart = abs(tips[:, 0] - tips[:, 1]).max(1) > s.disc
    assert (pictures != bare).any((1, 2))[apart].all()


def test_distractors_are_brighter_by_a_third():
    s = STIMULI["pathfinder"]
    g = glyphs(s, 1)
    kind = int(g.lines.max((1, 2)).argmin())
    kinds, starts = np.full((2, s.total), -1), np.full((2, s.total, 2), 24)
    kinds[0, 3], kinds[1, 2 * s.paddles] = kind, kind
    own, distractor = pathfinder.draw(Snakes(starts, kinds), s, g, np.full((2, 2, 2), 6))[:, 16:, 16:]
    assert distractor.max() == 2 * g.lines[kind].max() == 202
    assert abs(own - 0.75 * distractor).max() <= 1


def test_pathx_has_either_margin(monkeypatch):
    counts = {}

    def counted(rng, stimulus, table, count):
        counts[table.margin] = count
        return grow(rng, replace(stimulus, paddles=2), table, count)

    monkeypatch.setattr(pathfinder, "grow", counted)
    short = replace(STIMULI["pathx"], paddles=2, distractors=0)
    pathfinder.pictures_of(short, 0, 0, 4)
    assert sum(counts.values()) == 32
    assert counts.keys() == {2, 3}
    assert 5 < counts[2] < 27


def test_other_sides_are_refused():
    with pytest.raises(ValueError, match="side must be 32 or 8, but got 16"):
        tasks.build("pathfinder", side=16)
    with pytest.raises(ValueError, match="side must be 128 or 8, but got 32"):
        tasks.build("pathx", side=32)


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


def test_a_part_of_a_job_is_its_beginning():
    s = STIMULI["toy"]
    for part, whole in zip(
        pathfinder.pictures_of(s, 3, 5, 7), pathfinder.pictures_of(s, 3, 5, 32), strict=True
    ):
        np.testing.assert_array_equal(part, whole[:7])


def test_labels_and_pictures():
    rows = pictures()
    assert 45 < rows.labels.sum() < 105, "balanced: within five standard deviations of a half"
    assert rows.pictures.max((1, 2)).min() == 255
    assert rows.pictures.min((1, 2)).max() == 0
    assert len(np.unique(rows.pictures.reshape(len(rows), -1), axis=0)) == len(rows)


def test_no_pixel_alone_says_the_label(monkeypatch):
    monkeypatch.setattr(pathfinder, "_PER_JOB", 512)
    found, labels = pathfinder.pictures_of(STIMULI["pathfinder"], 0, 0, 512)
    joined, apart = (found[labels == label].astype(float) for label in (1, 0))
    error = np.sqrt(joined.var(0) / len(joined) + apart.var(0) / len(apart)) + 0.1
    assert abs((joined.mean(0) - apart.mean(0)) / error).max() < 5
    light = found.mean((1, 2))
    difference = joined.mean() - apart.mean()
    assert abs(difference) < 3 * light.std() * np.sqrt(1 / len(joined) + 1 / len(apart))


def test_contact_sheet(tmp_path):
    path = tmp_path / "sheet.png"
    tasks.contact_sheet(tasks.build("pathfinder"), path, across=4, down=2)
    sheet = np.array(PIL.Image.open(path))
    assert sheet.shape == (4 * 130 + 6, 4 * 130)
    assert (sheet[2 * 130 : 2 * 130 + 6] == 255).all(), "a line between label 1 and label 0"
