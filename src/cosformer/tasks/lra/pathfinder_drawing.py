"""Pathfinder's pictures: paddles and two discs, drawn at twice the size and reduced."""

import math

import numpy as np

from cosformer.tasks.lra.pathfinder_field import Array, Stimulus
from cosformer.tasks.lra.pathfinder_snakes import Snakes

_SCALE = 2
_CONTRAST = 0.75


def tips(snakes: Snakes, stimulus: Stimulus, first: Array, label: Array) -> Array:
    """[N, 2, 2]: the origin of long snake `first` [N], and the far end of the same one (label 1) or of the
    other."""
    rows, n = np.arange(len(label)), stimulus.paddles
    second = np.where(label == 1, first, 1 - first)
    origin = snakes.starts[rows, first * n]
    return np.stack([origin, snakes.ends[rows, second * n + n - 1]], 1)


def draw(snakes: Snakes, stimulus: Stimulus, discs: Array) -> Array:
    """Pictures uint8 [N, side, side] of the paddles, with discs around [N, 2, 2]."""
    margin = 2 + math.ceil(_SCALE * max(stimulus.paddle_length, stimulus.disc))
    size = _SCALE * stimulus.side
    canvas = np.zeros((len(discs), size + 2 * margin, size + 2 * margin), np.float32)
    half = stimulus.paddle_length / 2
    for i in range(snakes.starts.shape[1]):
        _paint(canvas, margin, snakes.starts[:, i], snakes.ends[:, i], half, stimulus.thickness / 2)
    for i in range(2):
        _paint(canvas, margin, discs[:, i], discs[:, i], 0.0, stimulus.disc)
    pictures = _reduced(_reduced(canvas[:, margin:-margin, margin:-margin]).swapaxes(1, 2)).swapaxes(1, 2)
    pictures = (_CONTRAST * 2 * pictures).clip(0, 1)
    pictures *= 255 / pictures.max((1, 2), keepdims=True)
    return np.rint(pictures).astype(np.uint8)


def _paint(canvas: Array, margin: int, starts: Array, ends: Array, half: float, radius: float) -> None:
    """Bars of half a length and half a width, with straight ends; of no length: discs. Their rims are
    soft."""
    reach = math.ceil(_SCALE * math.hypot(half, radius)) + 1
    centres = (starts + ends) * (_SCALE / 2)  # [N, 2]
    corner = np.floor(centres).astype(np.int64) - reach
    offset = np.arange(2 * reach + 1)
    x, y = corner[:, 0, None] + offset, corner[:, 1, None] + offset  # [N, n]
    dx = (x + 0.5 - centres[:, :1])[:, None, :].astype(np.float32)
    dy = (y + 0.5 - centres[:, 1:])[:, :, None].astype(np.float32)
    if half:
        ux, uy = ((ends - starts) / (2 * half)).astype(np.float32).T[:, :, None, None]
        along, across = abs(dx * ux + dy * uy), abs(dy * ux - dx * uy)
        cover = (_SCALE * half + 0.5 - along).clip(0, 1) * (_SCALE * radius + 0.5 - across).clip(0, 1)
    else:
        cover = (np.float32(_SCALE * radius + 0.5) - np.sqrt(dx * dx + dy * dy)).clip(0, 1)
    place = np.arange(len(canvas))[:, None, None], y[:, :, None] + margin, x[:, None, :] + margin
    canvas[place] = np.maximum(canvas[place], cover)


def _lanczos(lobes: int = 3) -> list[float]:
    """The filter's weights at the pixels around a pixel of half the resolution."""
    at = [(k + 0.5) / _SCALE for k in range(-lobes * _SCALE, lobes * _SCALE)]
    weights = [math.sin(math.pi * t) * math.sin(math.pi * t / lobes) / (t * t) for t in at]
    return [w / sum(weights) for w in weights]


def _reduced(x: Array) -> Array:
    """Half as long along the last axis. Sums in a fixed order: a product of matrices might round otherwise
    with other numbers of threads."""
    weights = _lanczos()
    edge = len(weights) // 2 - _SCALE // 2
    wide = np.pad(x, ((0, 0), (0, 0), (edge, edge)))
    length = x.shape[2] // _SCALE
    out = np.zeros((*x.shape[:2], length), np.float32)
    for k, weight in enumerate(weights):
        out += np.float32(weight) * wide[:, :, k : k + _SCALE * length : _SCALE][:, :, :length]
    return out
