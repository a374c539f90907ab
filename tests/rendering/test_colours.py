"""Colours that are told apart by all eyes, on light and on dark ground."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from tokenloom.rendering.colours import OTHER, PALETTE, colours

LIGHT, DARK = "#FFFFFF", "#1B1B1F"

TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
"""Linear sRGB to XYZ; the middle row is luminance."""

EYES = {
    "all cones": np.eye(3),
    "no long cones": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no middle cones": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "no short cones": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
"""What remains of linear sRGB, by Machado, Oliveira and Fernandes, 2009."""


def linear(colour: str) -> np.ndarray:
    channels = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(colour: str, eye: str) -> np.ndarray:
    x, y, z = TO_XYZ @ np.clip(np.array(EYES[eye]) @ linear(colour), 0, 1) / (0.95047, 1, 1.08883)
    x, y, z = (np.cbrt(value) if value > 0.008856 else 7.787 * value + 16 / 116 for value in (x, y, z))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(TO_XYZ[1] @ linear(colour)) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("eye", EYES)
def test_every_eye_tells_all_of_them_apart(eye: str):
    apart = {pair: np.linalg.norm(lab(pair[0], eye) - lab(pair[1], eye)) for pair in combinations((*PALETTE, OTHER), 2)}
    nearest = min(apart, key=apart.__getitem__)
    assert apart[nearest] > 14, nearest  # 2.3 is just seen when two lie side by side


@pytest.mark.parametrize("ground", [LIGHT, DARK])
def test_all_of_them_are_seen_on_both_grounds(ground: str):
    assert all(contrast(colour, ground) > 1.25 for colour in (*PALETTE, OTHER))


def test_what_is_left_has_one_colour():
    assert colours(0) == []
    assert colours(3) == ["#0072B2", "#E69F00", "#009E73"]
    assert colours(200) == [*PALETTE, *[OTHER] * 188]
