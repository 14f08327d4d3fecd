"""Flags that fit neither each other nor the algorithm are refused; `test_validate` has more."""

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


class OfItsOwn(Algorithm):
    def source(self, fresh):
        return fresh


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        (InRounds(), "learns only from unrolls of its newest policy"),
        (OfItsOwn(), "has a source of its own"),
        (Algorithm(), "records no features, which this replay compares"),
    ],
)
def test_algorithms_that_cannot_use_it_are_refused(algorithm, said, capsys):
    with pytest.raises(SystemExit):
        _refuse(_config("queue:0.5,elite:0.5:100"), algorithm)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["normalize_rewards", "subtract_mean_image"])
def test_a_mix_without_new_unrolls_cannot_normalise(capsys, flag):
    config = _config("uniform:1:100", **{flag: True})
    with pytest.raises(SystemExit):
        _refuse(config, Algorithm())
    error = capsys.readouterr().err
    assert f"--{flag} would learn nothing, since new unrolls alone are counted" in error
    assert error.endswith(f"or start a new run with --{flag}=false\n")
    _refuse(_config(**{flag: True}), Algorithm())
    _refuse(_config("uniform:1:100"), Algorithm())


def test_an_actor_lacks_the_flags_that_are_for_learners_only():
    flags = {"mode": "train_from", "level_name": "catch"}
    flag_conflicts.refuse_before_loading(Config(job_name="actor", **flags), 1)
    with pytest.raises(SystemExit):
        flag_conflicts.refuse_before_loading(Config(job_name="learner", **flags), 1)


@pytest.mark.parametrize("actors", [0, 1, 3])
def test_where_learners_infer_each_needs_an_actor_unless_actors_join_later(actors, capsys):
    config = Config(inference="learner", num_learners=3, num_actors=actors)
    if actors == 1:
        with pytest.raises(SystemExit):
            flag_conflicts.refuse_before_loading(config, 3)
        assert "error: --inference=learner: 1 actors cannot feed 3 learn" in capsys.readouterr().err
    else:
        flag_conflicts.refuse_before_loading(config, 3)
