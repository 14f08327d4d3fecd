"""The suite of 57 games, with ids of the same kind as the run's."""

import gymnasium
import numpy as np
import pytest

from impala_mm.environments import levels, suites
from impala_mm.environments.make import level_spec, make_environments


@pytest.mark.parametrize(
    ("like", "due"),
    [
        ("ALE/Breakout-v5", "ALE/MontezumaRevenge-v5"),
        ("BreakoutNoFrameskip-v0", "MontezumaRevengeNoFrameskip-v0"),
        ("PongNoFrameskip-v4", "MontezumaRevengeNoFrameskip-v4"),
        ("CartPole-v1", "MontezumaRevengeNoFrameskip-v4"),
    ],
)
def test_every_game_of_the_suite_has_an_id_that_is_known(like, due):
    pytest.importorskip("ale_py")
    assert levels
    games = suites.suite_levels("atari57", like)
    assert due in games
    assert len(set(games)) == 57
    assert [game for game in games if game not in gymnasium.registry] == []


def test_all_18_actions_are_there_where_the_emulator_leaves_some_out():
    """FIRE has no effect in Skiing, where UPFIRE is UP; a network with 18 actions can play it."""
    pytest.importorskip("ale_py")
    skiing = make_environments("SkiingNoFrameskip-v4", 1, seed=0, full_action_space=True)
    pong = level_spec("PongNoFrameskip-v4", full_action_space=True)
    assert skiing.spec.num_actions == pong.num_actions == 18
    from ale_py import Action  # noqa: PLC0415

    played = []
    for names in (["UPFIRE", "LEFTFIRE", "FIRE"], ["UP", "LEFT", "NOOP"]):
        actions = [list(Action.__members__).index(name) for name in names]
        envs = make_environments(
            "SkiingNoFrameskip-v4", 1, seed=0, no_ops=0, full_action_space=True
        )
        envs.reset()
        played.append([envs.step(np.array([action])).observation for action in actions * 20])
        assert envs.faults == []
    assert np.array_equal(*played)
    assert len({picture.tobytes() for picture in played[0]}) > 10


def test_the_game_that_ale_py_names_v5_alone_is_as_the_others():
    pytest.importorskip("ale_py")
    surround = level_spec("SurroundNoFrameskip-v4")
    assert surround.action_repeats == 4
    assert surround.scores == (-10.0, 6.5)
    registered = gymnasium.registry
    for version in ("v0", "v4"):
        of_pong = registered[f"PongNoFrameskip-{version}"].kwargs
        assert registered[f"SurroundNoFrameskip-{version}"].kwargs == of_pong | {"game": "surround"}
