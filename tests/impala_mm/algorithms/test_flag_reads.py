"""The flags that an algorithm reads are known, and a learner says which given ones it does not."""

import dataclasses
import pickle
import pprint

import pytest

from impala_mm.algorithms import agent, flag_reads
from impala_mm.config import flags
from impala_mm.config.settings import Config


@dataclasses.dataclass(frozen=True)
class Settings(Config):
    entropy_cost: float = flags.default(Config, "entropy_cost", 0.5)
    own: int = flags.flag(1, "A flag of its own.", group="Own")


def _note(config, read):
    return flag_reads.note_unread(config, read)


def test_what_is_read_of_a_config_is_recorded_and_all_else_is_as_it_was():
    config, read = Settings(decay=0.5), set()
    recording = flag_reads.recording(config, read)
    assert repr(recording) == repr(config)
    pprint.pformat(recording, width=20)
    assert not read, "a config may be printed"
    assert isinstance(recording, Settings)
    assert (recording.decay, recording.own) == (0.5, 1)
    assert read == {"decay", "own"}
    assert type(pickle.loads(pickle.dumps(recording))) is Settings
    with pytest.raises(dataclasses.FrozenInstanceError):
        recording.decay = 1
    assert dataclasses.replace(recording, own=2).own == 2
    names = {f.name for f in dataclasses.fields(Settings)}
    assert read == names, "a copy of all values may be read for any of them"
    for take in (vars, dataclasses.asdict):
        read = set()
        assert take(flag_reads.recording(config, read)) == vars(config)
        assert read == names


def test_flags_that_an_algorithm_did_not_read_are_named_if_they_were_given():
    given = Settings(decay=0.5, entropy_cost=0.1, algorithm="my.one", own=7, gradients_clipping=1.0)
    assert _note(given, {"momentum"}) == (
        "note: --algorithm=my.one has not read --entropy_cost=0.1, --decay=0.5: this has no effect"
    )
    assert _note(given, {"decay", "entropy_cost"}) == ""
    assert _note(Settings(algorithm="my.one"), set()) == "", "0.5 is its own default"
    assert _note(Settings(seed=5, num_envs=3, logdir="x", discounting=0.9), {"discounting"}) == ""


@pytest.mark.parametrize("algorithm", ["dqn", "r2d2"])
def test_values_of_actions_leave_flags_of_policies_unread(algorithm):
    config = Config.of_algorithm(algorithm)(
        algorithm=algorithm, level_name="memory", baseline_cost=0.25, separate_networks=True
    )
    said = _note(config, agent.make_agent(config, 0).flags_read)
    assert "--baseline_cost=0.25" in said
    assert "--separate_networks=true" in said


def test_impala_reads_what_its_networks_and_its_optimizer_need_when_it_is_made():
    config = Config(level_name="catch", layer_norm=True, momentum=0.5, policy_init_scale=1.0)
    read = agent.make_agent(config, 0).flags_read
    assert {"layer_norm", "momentum", "policy_init_scale", "normalize_rewards"} <= read
    assert "learning_rate_power" not in read
    assert _note(config, read) == ""


def test_a_module_of_sonnet_that_gets_the_config_reads_no_more_of_it_than_its_own_code_does():
    config = Config.of_algorithm("tests.algorithms.recurrent_q")(
        level_name="memory", algorithm="tests.algorithms.recurrent_q", baseline_cost=0.3
    )
    read = agent.make_agent(config, 0).flags_read
    assert {"learning_rate", "burn_in", "lstm_size"} <= read
    assert "has not read --baseline_cost=0.3: this has no effect" in _note(config, read)
