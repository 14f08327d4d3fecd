"""Pictures of environment 0, which do not change its play."""

from typing import ClassVar

import numpy as np
import pytest
from counting import Counting, level

from impala_mm.environments import gym_vector
from impala_mm.environments.make import make_environments
from impala_mm.environments.types import BadLevel

CORRIDOR = "sandbox.own_environment:Corridor-v0"


def _play(level, drawn, steps):
    """Return entries and pictures under the same actions."""
    envs = make_environments(level, 2, seed=5, renders=drawn)
    rng = np.random.default_rng(0)
    step, entries, seen = envs.reset(), [], []
    for _ in range(steps):
        entries.append([np.array(part) for part in step])
        if drawn:
            seen.append(envs.picture().copy())
        step = envs.step(rng.integers(0, envs.spec.num_actions, 2))
    assert envs.faults == []
    envs.close()
    return entries, seen


@pytest.mark.parametrize(
    ("drawn", "picture"),
    [
        (np.full((4, 5), 7), [7, 7, 7]),
        (np.full((4, 5, 1), 7), [7, 7, 7]),
        (np.full((4, 5, 4), [1, 2, 3, 255], np.uint8), [1, 2, 3]),
    ],
)
def test_pictures_are_in_three_colours_without_alpha(drawn, picture):
    found = gym_vector.picture_in_colours("a-level", drawn)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, np.full((4, 5, 3), picture))


@pytest.mark.parametrize(
    ("drawn", "said"),
    [
        (lambda: np.zeros(3), r"draws pictures of shape \[3\]"),
        (lambda: 1 / 0, "cannot draw a picture: ZeroDivisionError"),
    ],
)
def test_a_picture_that_cannot_be_drawn_is_a_fault_of_the_level(drawn, said):
    class Drawing(Counting):
        metadata: ClassVar = {"render_modes": ["rgb_array"]}
        render_mode = "rgb_array"

        def __init__(self, render_mode=None):
            super().__init__()

        def render(self):
            return drawn()

    envs = make_environments(level(Drawing), 1, seed=1, renders=True)
    envs.reset()
    with pytest.raises(BadLevel, match=said):
        envs.picture()


@pytest.mark.parametrize(
    ("level", "shape"),
    [
        ("gym:CartPole-v1", (400, 600, 3)),
        ("catch", (320, 160, 3)),
        ("games:PictureCatch", (320, 160, 3)),  # a class of wrappers
        ("ALE/Breakout-v5", (210, 160, 3)),  # its sticky actions are random
    ],
)
def test_a_level_that_is_looked_at_plays_as_it_does_unseen(level, shape):
    is_atari = "ALE" in level
    if is_atari:
        pytest.importorskip("ale_py")
    steps = 250 if is_atari else 60
    entries, seen = _play(level, True, steps)
    unseen, _ = _play(level, False, steps)
    for one, other in zip(entries, unseen, strict=True):
        for a, b in zip(one, other, strict=True):
            assert (a == b).all()
    assert {(picture.shape, picture.dtype.name) for picture in seen} == {(shape, "uint8")}
    assert len({picture.tobytes() for picture in seen}) > 5, "it moves"
    if is_atari:
        cv2 = pytest.importorskip("cv2")
        assert sum(int(entry[4][0]) for entry in entries) > 1, "and a game ends"
        for entry, picture in zip(entries[:60], seen, strict=False):  # the network's, in colour
            grey = picture @ np.array([0.299, 0.587, 0.114])
            small = cv2.resize(grey, (84, 84), interpolation=cv2.INTER_AREA)
            assert np.abs(small - entry[3][0, ..., 0]).mean() < 1


def test_a_picture_s_rate_is_that_of_play():
    assert make_environments("CartPole-v1", 1, seed=0, num_action_repeats=2).picture_rate == 25
    assert make_environments(CORRIDOR, 1, seed=0).picture_rate == 30
    pytest.importorskip("ale_py")
    assert make_environments("PongNoFrameskip-v4", 1, seed=0).picture_rate == 15


def test_what_has_no_looks_is_refused_in_a_sentence():
    envs = make_environments(CORRIDOR, 1, seed=0, renders=True)
    envs.reset()
    with pytest.raises(BadLevel, match=f"{CORRIDOR} draws no pictures"):
        envs.picture()


def test_observations_become_pictures_from_black_to_white():
    drawn = gym_vector.picture_of_observation("x", np.array([[0.5, 1.5], [0.5, 1.0]], np.float32))
    assert drawn.shape == (160, 160, 3)
    assert [drawn[at].tolist() for at in ((0, 0), (0, 159), (159, 159))] == [
        *([0] * 3, [255] * 3, [127] * 3)
    ]
    colours = np.random.default_rng(0).integers(0, 255, (200, 160, 3), np.uint8)
    assert (gym_vector.picture_of_observation("x", colours) == colours).all()
    stack = np.zeros((84, 84, 4), np.uint8)
    stack[..., 3] = 9
    assert (gym_vector.picture_of_observation("x", stack) == 9).all(), "of a stack the newest"
