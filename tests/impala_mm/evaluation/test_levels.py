"""The levels of a test: those that were asked for, else the run's own, if the network fits."""

import pytest
from saved_run import save

from impala_mm.config.settings import Config
from impala_mm.environments import SUITES
from impala_mm.environments.types import BadLevel
from impala_mm.evaluation import games
from impala_mm.policy.core import config_for_playing
from impala_mm.records import checkpoint


def _choose(logdir, said, **settings):
    _, about = checkpoint.find(logdir)
    return games.choose_levels(Config(**settings), list(settings), about, said.append)


@pytest.fixture(scope="module")
def catch(tmp_path_factory):
    path = tmp_path_factory.mktemp("catch")
    save(path, level_name="catch")
    return path


def test_unset_they_are_the_run_s_own_and_given_they_are_those(catch, tmp_path):
    assert _choose(catch, []) == ["catch"], "though the flag's default is another"
    assert _choose(catch, [], test_levels="catch, impala_mm/Catch-v0") == [
        "catch",
        "impala_mm/Catch-v0",
    ]
    save(tmp_path, level_name="gym:CartPole-v1")
    assert _choose(tmp_path, []) == ["gym:CartPole-v1"]
    assert _choose(tmp_path, [], level_name="CartPole-v1") == ["CartPole-v1"]


def test_what_differs_from_the_run_is_what_was_given_and_the_seed():
    config = Config(seed=5, width=3, sticky_actions=0.5, learning_rate=1.0, eval_epsilon=0.2)
    given = ["sticky_actions", "learning_rate"]
    assert games.changed_flags(config, given) == {"sticky_actions": 0.5, "seed": 5}
    changed = games.changed_flags(config, [*given, "eval_epsilon"])
    assert changed == {"sticky_actions": 0.5, "eval_epsilon": 0.2, "seed": 5}


def test_opponents_and_the_trust_in_them_are_those_that_a_test_is_given():
    trained = {"algorithm": "impala", "opponents": "runs/a:1", "trust_teacher": True}
    config = config_for_playing(trained)
    assert (config.opponents, config.trust_teacher) == (Config.opponents, False)
    asked = Config.of_algorithm("impala")(opponents="runs/b:1", trust_teacher=True)
    changed = games.changed_flags(asked, ["opponents", "trust_teacher"])
    config = config_for_playing(trained, **changed)
    assert (config.opponents, config.trust_teacher) == ("runs/b:1", True)


def test_a_level_that_does_not_fit_is_refused(catch, capsys):
    with pytest.raises(SystemExit):
        _choose(catch, [], level_name="CartPole-v1")
    assert "CartPole-v1 has 2 actions and observations float32 [4]" in capsys.readouterr().err
    for wrong, said in (
        ({"sticky_actions": 0.5}, "catch is not an Atari game, and sticky_actions works only"),
        ({"test_levels": "atari56"}, "there is no environment atari56"),
    ):
        with pytest.raises(BadLevel, match=said):
            _choose(catch, [], **wrong)


GAMES = ("alien", "breakout", "pong", "qbert", "skiing")


def test_games_of_a_suite_that_do_not_fit_are_left_out_and_named(
    catch, tmp_path, capsys, monkeypatch
):
    """Each game has its own set of actions; a network with all 18 fits every game."""
    pytest.importorskip("ale_py")
    monkeypatch.setattr(SUITES["atari57"], "levels", GAMES)  # all 57 take a while
    save(tmp_path / "pong", level_name="ALE/Pong-v5")
    said = []
    fitting = _choose(tmp_path / "pong", said, test_levels="atari57")
    assert fitting == ["ALE/Pong-v5", "ALE/Qbert-v5"]
    assert said[-1].endswith(": ALE/Alien-v5, ALE/Breakout-v5, ALE/Skiing-v5")
    with pytest.raises(SystemExit):
        _choose(tmp_path / "pong", [], test_levels="ALE/Breakout-v5")
    with pytest.raises(SystemExit):
        _choose(catch, [], test_levels="atari57")
    assert "none of atari57 fits: AlienNoFrameskip-v4 has 18" in capsys.readouterr().err

    save(tmp_path / "full", level_name="ALE/Pong-v5", full_action_space=True)
    assert len(_choose(tmp_path / "full", said, test_levels="atari57")) == 5
