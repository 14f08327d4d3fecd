"""The flags that an algorithm reads are known, and a learner says which given ones it does not."""

import dataclasses
import pickle

import pytest

from impala_mm.actor.acting import Act
from impala_mm.algorithms import agent, contract, flag_reads
from impala_mm.algorithms.interface import Role, Setup
from impala_mm.algorithms.make import make_algorithm
from impala_mm.config import flags
from impala_mm.config.algorithm_settings import BUILT_IN
from impala_mm.config.settings import Config
from impala_mm.data import batches
from impala_mm.data.variables import ParameterLayout
from impala_mm.distributed.group import SingleLearner
from impala_mm.environments import from_flags
from impala_mm.learner.train_step import TrainStep


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


@pytest.mark.parametrize(
    ("algorithm", "level"),
    [
        *((name, "memory") for name in BUILT_IN if name not in ("a2c", "vpg", "sac", "td3", "mpo")),
        *((name, "Pendulum-v1") for name in ("sac", "td3", "mpo")),
    ],
)
def test_built_in_algorithms_read_all_flags_but_those_that_their_settings_name(algorithm, level):
    kind = Config.of_algorithm(algorithm)
    config, read = kind(algorithm=algorithm, level_name=level), set()
    (spec,) = from_flags.level_specs(config).values()
    for role in (Role.LEARNER, Role.ACTOR, Role.EVALUATOR):
        made = make_algorithm(config, spec, Setup(role), read)
        if role is Role.EVALUATOR:
            contract.trace_judges(made)
        elif role is Role.ACTOR:
            Act(made, 4)
        else:
            layout = ParameterLayout(made.variables.acting, made.variables.trained, "float32")
            entries, columns = made.batch_shape or (None, config.batch_size)
            batch = batches.specs(made.unroll, columns, entries)
            TrainStep(made, SingleLearner(), config, layout.values).trace(batch)
    assert not read & kind.ignored
    shared = {f.name for f in dataclasses.fields(Config)}
    for name, known in flags.infos(kind).items():
        is_for_algorithms = name not in shared or flag_reads.is_for_algorithms(known)
        if is_for_algorithms and name not in read | kind.ignored:
            conditions = [c for c in (known.needs, known.only_with) if c]
            assert any(c.why_idle(config) for c in conditions), f"--{name} is not read"


def test_a_module_of_sonnet_that_gets_the_config_reads_no_more_of_it_than_its_own_code_does():
    config = Config.of_algorithm("r2d2")(level_name="memory", algorithm="r2d2", baseline_cost=0.3)
    read = agent.make_agent(config, 0).flags_read
    assert {"learning_rate", "burn_in", "lstm_size"} <= read
    assert "baseline_cost" not in read
