"""The identity that a run's processes share, and the errors for unknown names."""

import pytest
import tensorflow as tf
from in_threads import together

from impala_mm.algorithms import agent
from impala_mm.config.settings import Config
from impala_mm.distributed import consistency
from impala_mm.runtime import devices


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"level_name": "CartPol-v1"}, "did you mean CartPole-v1"),
        ({"level_name": "catch,memory"}, "catch and memory differ in their actions (3 and"),
        ({"level_name": "PongNoFramskip-v4"}, "did you mean PongNoFrameskip-v4"),
        ({"agent_name": "MLPAgnt"}, "did you mean MLPAgent"),
        ({"agent_name": "ResNetLSTMAgent"}, "--agent_name=ResNetLSTMAgent: "),
        ({"algorithm": "impalla"}, "there is no such algorithm; write impala"),
        (
            {
                "level_name": "PongNoFrameskip-v4",
                "agent_name": "SimpleConvNetAgent",
                "height": 20,
            },
            "does not fit observations of shape [20, 84, 1]: it reads images of at least 36x36",
        ),
    ],
)
def test_a_wrong_name_is_refused_with_what_would_be_right(settings, sentence, capsys):
    with pytest.raises(SystemExit) as ended:
        agent.make_agent(Config(**settings), 0)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_learners_that_were_given_one_address_are_refused_by_their_numbers():
    given = ["a:1", "b:1", "a:1"]
    for found in together(3, lambda group: consistency.gather_addresses(group, given[group.rank])):
        assert isinstance(found, consistency.SettingsDiffer)
        assert str(found).startswith("learners 0 and 2 were both given a:1: each needs an entry")


def test_what_differs_is_refused_by_its_name_and_who_has_what_on_all_learners_alike():
    """Flags of one learner, such as its address, may differ."""
    rates = [0.1, 0.2, 0.1]

    def compare(group):
        config = Config(learning_rate=rates[group.rank], bind_address=f"x:{group.rank}")
        consistency.check_settings(group, config, {"run_id": group.rank, "emulator": "0.12"})

    for found in together(3, compare):
        assert isinstance(found, consistency.SettingsDiffer)
        assert str(found).startswith(
            "the learners' --learning_rate differ: 0.1 on 0 and 2, 0.2 on 1; give all of them"
        )


def test_libraries_that_differ_are_refused_too():
    emulators = ["0.11", "0.12"]
    of = lambda group: {"run_id": 0, "emulator": emulators[group.rank]}  # noqa: E731
    for found in together(2, lambda group: consistency.check_settings(group, Config(), of(group))):
        assert "emulator differ: 0.11 on 0, 0.12 on 1" in str(found)


@pytest.mark.parametrize(
    ("asked", "shape", "can", "due"),
    [
        ("auto", [84, 84, 1], True, "bfloat16"),
        ("auto", [84, 84, 1], False, "float32"),
        ("auto", [10, 5, 1], True, "float32"),
        ("auto", [4], True, "float32"),
        ("float32", [84, 84, 1], True, "float32"),
        ("bfloat16", [84, 84, 1], False, "bfloat16"),
    ],
)
def test_precision_is_chosen_by_processor_and_observations_or_as_asked(
    monkeypatch, asked, shape, can, due
):
    monkeypatch.setattr(devices, "computes_bfloat16", lambda: can)
    assert devices.resolve_precision(asked, tf.TensorSpec(shape, tf.uint8)) == due


def test_auto_is_resolved_before_a_network_is_made_of_it(monkeypatch):
    monkeypatch.setattr(devices, "computes_bfloat16", lambda: True)
    made = agent.make_agent(Config(level_name="CartPole-v1", precision="auto"), 0)
    assert made.weights > 0
