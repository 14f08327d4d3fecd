"""Networks by the flags: what actors and learners compare, and what a resumed run must keep."""

import dataclasses

import pytest
import tensorflow as tf

import nets
from impala_mm.algorithms import agent
from impala_mm.algorithms.parts import networks
from impala_mm.config.errors import UserMistake
from impala_mm.config.settings import Config
from impala_mm.environments.make import level_spec
from impala_mm.learner import resume
from impala_mm.records.checkpoint import CheckpointInfo, Mismatch
from impala_mm.runtime import machine

CHOSEN = {
    "mlp_sizes": "16, 8",
    "activation": "relu",
    "layer_norm": True,
    "lstm_size": 4,
    "separate_networks": True,
}


@pytest.fixture(scope="module")
def made():
    """Return agents of CartPole by what was chosen for their networks."""
    common = Config(level_name="CartPole-v1", agent_name="MLPLSTMAgent")
    return {
        "default": agent.make_agent(common, 0),
        "chosen": agent.make_agent(dataclasses.replace(common, **CHOSEN), 0),
    }


@pytest.mark.parametrize("shape", [[50_000_000], [4096, 4096, 3]])
def test_a_network_that_does_not_fit_in_memory_is_refused_before_it_takes_any(monkeypatch, shape):
    monkeypatch.setattr(machine, "memory_bytes", lambda: 8_000_000_000)
    large = level_spec("catch")._replace(observation=tf.TensorSpec(shape, tf.uint8))
    config = Config(subtract_mean_image=False, precision="float32")
    with pytest.raises(
        UserMistake, match=r"of 50,[0-9,]+ numbers has [0-9],[0-9,]+ weights.* 8.0 "
    ):
        networks.make_network(config, large)


def test_the_flags_reach_the_network(made):
    shapes = [v.shape.as_list() for v in made["chosen"].algorithm.variables.trained]
    layers = [[16], [4, 16], [8], [16, 8], [16], [16], [8], [8]]
    for one in (layers, [[4, 16], [16], [11, 16]]):  # an LSTM of 4 reads 8 + 1 + 2
        assert all(shapes.count(shape) >= 2 * one.count(shape) for shape in one)
    state = made["chosen"].algorithm.initial_state(3)
    assert [part.shape for part in tf.nest.flatten(state)] == [(3, 4)] * 4


def test_the_flags_of_a_transformer_reach_it():
    chosen = {"lstm_size": 4, "gtrxl_layers": 3, "gtrxl_heads": 2, "gtrxl_memory": 5}
    config = Config(agent_name="MLPGTrXLAgent", precision="float32", **chosen)
    network = networks.make_network(config, level_spec("CartPole-v1"))
    assert network.initial_state(2).core.shape == (2, 5, 3 * 4 + 1)
    with pytest.raises(nets.Unsuitable, match="gtrxl_heads=3 does not divide the width 4"):
        networks.make_network(dataclasses.replace(config, gtrxl_heads=3), level_spec("CartPole-v1"))
    assert chosen.keys() <= {name.removeprefix("--") for name in networks.recorded(config)}


@pytest.mark.parametrize("flag", CHOSEN)
def test_every_flag_of_the_network_is_part_of_what_runs_compare_and_record(flag, made):
    config = Config(level_name="CartPole-v1", **{flag: CHOSEN[flag]})
    spec = made["default"].spec
    assert flag in networks.describe(config, networks.chosen_name(config, spec))
    assert networks.describe(Config(), networks.chosen_name(Config(), spec)) == "MLPAgent"
    different = made["default"].made_of | networks.recorded(config)
    about = CheckpointInfo(1, {}, made["default"].made_of, {})
    refused = rf"--{flag} is (16,8|relu|true|4) here and (64,64|tanh|false|0) in runs/x: give the"
    with pytest.raises(Mismatch, match=refused):
        resume.check_resumable(about, different, "runs/x")
    with pytest.raises(Mismatch, match="there, so its weights do not fit"):
        resume.check_weights(about, different, "runs/x")
    # A checkpoint of an earlier version records no such flag.
    earlier = {name: x for name, x in about.made_of.items() if name != f"--{flag}"}
    resume.check_resumable(about._replace(made_of=earlier), about.made_of, "runs/x")
    with pytest.raises(Mismatch, match=refused):
        resume.check_resumable(about._replace(made_of=earlier), different, "runs/x")


def test_a_flag_without_effect_on_the_network_is_refused(capsys):
    with pytest.raises(SystemExit):
        agent.make_agent(Config(level_name="CartPole-v1", lstm_size=32), 0)
    assert "so lstm_size would have no effect" in capsys.readouterr().err


def test_the_first_policy_is_as_even_as_its_scale():
    made = agent.make_agent(Config(level_name="CartPole-v1", policy_init_scale=3.0), 0)
    (head,) = (v for v in made.algorithm.variables.trained if "policy_logits/w" in v.name)
    assert abs(tf.norm(head, axis=0).numpy() - 3).max() < 1e-4


def test_a_network_that_gets_no_mean_image_is_refused_where_one_shall_be_subtracted():
    config = Config(level_name="catch", algorithm="mine", subtract_mean_image=True)
    with pytest.raises(UserMistake, match="--algorithm=mine gives its network no mean image"):
        networks.make_network(config, level_spec("catch"))
