"""Flags that fit neither each other nor the algorithm are refused; `test_validate` has more."""

import contextlib

import pytest

from impala_mm.algorithms.interface import Algorithm
from impala_mm.config.settings import Config
from impala_mm.learner import flag_conflicts


def _config(text="queue:0.5,prioritised:0.5:100", **flags):
    return Config(batch_size=4, replay=text, **flags)


def _refuse(config, algorithm):
    flag_conflicts._refuse_first(flag_conflicts._of_replay_with(config, algorithm))


class InRounds(Algorithm):
    rounds = True


@pytest.mark.parametrize(
    ("config", "algorithm", "said"),
    [
        (_config("queue:0.5,elite:0.5:100"), InRounds(), "unrolls of its newest policy"),
        (_config("uniform:1:100", normalize_rewards=True), Algorithm(), "--normalize_rewards"),
        (_config("uniform:1:100", subtract_mean_image=True), Algorithm(), "--subtract_mean_image"),
        (_config("uniform:1:100"), Algorithm(), ""),
        (_config(normalize_rewards=True), Algorithm(), ""),
    ],
)
def test_a_replay_that_an_algorithm_or_its_statistics_cannot_use_is_refused(
    config, algorithm, said, capsys
):
    with pytest.raises(SystemExit) if said else contextlib.nullcontext():
        _refuse(config, algorithm)
    assert said in capsys.readouterr().err


def test_an_actor_lacks_the_flags_that_are_for_learners_only():
    flags = {"mode": "train_from", "level_name": "catch"}
    flag_conflicts.refuse_before_loading(Config(job_name="actor", **flags), 1)
    with pytest.raises(SystemExit):
        flag_conflicts.refuse_before_loading(Config(job_name="learner", **flags), 1)


@pytest.mark.parametrize(
    "stays", [{"inference": "learner"}, {"learner_assignment": "fixed"}], ids=str
)
def test_where_actors_stay_each_learner_needs_one_unless_actors_join_later(stays, capsys):
    for actors in (0, 3):
        config = Config(**stays, num_learners=3, num_actors=actors)
        flag_conflicts.refuse_before_loading(config, 3)
    with pytest.raises(SystemExit):
        flag_conflicts.refuse_before_loading(Config(**stays, num_actors=2), 3)
    ((name, value),) = stays.items()
    assert f"--{name}={value}: 2 actors cannot feed 3 learners" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("of_frontend", "flags", "fits"),
    [
        ("1", {"deterministic_run": True}, True),
        ("0", {"deterministic_run": True}, True),  # they join later
        ("3", {"deterministic_run": True, "num_actors": 1}, False),
        ("", {"deterministic_run": True, "num_actors": 3}, False),
        ("", {"algorithm": "ppo", "num_learners": 4, "num_actors": 4}, True),
        ("", {"algorithm": "ppo", "num_learners": 4, "num_actors": 0}, True),
        ("", {"num_learners": 4, "num_actors": 3}, True),
    ],
)
def test_the_frontends_number_of_actors_counts_before_that_of_a_local_run(
    monkeypatch, of_frontend, flags, fits
):
    if of_frontend:
        monkeypatch.setenv("IMPALA_MM_ACTORS", of_frontend)
    config = Config.of_algorithm(flags.get("algorithm", "impala"))(level_name="catch", **flags)
    with contextlib.nullcontext() if fits else pytest.raises(SystemExit):
        flag_conflicts.refuse_before_loading(config, config.num_learners)
