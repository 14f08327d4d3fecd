"""The identity that a run's processes share, and the errors for unknown names."""

import dataclasses
import json
import math

import pytest
import tensorflow as tf

from impala_mm.algorithms import agent
from impala_mm.algorithms.impala.settings import ImpalaSettings
from impala_mm.algorithms.interface import Role
from impala_mm.config.flags import info
from impala_mm.config.settings import Config
from impala_mm.environments.make import level_spec
from impala_mm.runtime import devices
from impala_mm.transport import validity


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"level_name": "CartPol-v1"}, "did you mean CartPole-v1"),
        ({"level_name": "catch,memory"}, "catch and memory differ in their actions (3 and"),
        ({"level_name": "PongNoFramskip-v4"}, "did you mean PongNoFrameskip-v4"),
        ({"agent_name": "MLPAgnt"}, "did you mean MLPAgent"),
        ({"agent_name": "ResNetLSTMAgent"}, "--agent_name=ResNetLSTMAgent: "),
        (
            {"level_name": "Pendulum-v1", "algorithm": "tests.helpers.dqn_like"},
            "Pendulum-v1 takes Box([1], -2 to 2)",
        ),
        ({"algorithm": "impalla"}, "there is no such algorithm; write impala"),
        (
            {"level_name": "PongNoFrameskip-v4", "agent_name": "SimpleConvNetAgent", "height": 20},
            "it reads images of at least 36x36",
        ),
    ],
)
def test_a_wrong_name_is_refused_with_what_would_be_right(settings, sentence, capsys):
    with pytest.raises(SystemExit) as ended:
        agent.make_agent(Config(**settings), 0)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


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


def test_actors_and_learners_of_an_algorithm_share_its_own_flags_but_those_for_learners_alone():
    own = {"level_name": "memory", "algorithm": "dqn"}
    kind = Config.of_algorithm(own["algorithm"])
    identity = agent.make_agent(kind(**own), 0).identity
    same, other = (
        agent.make_agent(kind(**own, **flags), 1, role=Role.ACTOR).identity
        for flags in ({"num_target_quantiles": 9}, {"epsilon_base": 0.25})
    )
    assert all(isinstance(text, str) for text in identity["shared"].values()), "as it travels"
    same = json.loads(json.dumps(same))  # as it travels
    assert validity.refusal(same, identity) == ""
    said = "this actor's --epsilon_base, a flag of the algorithm, is 0.25, the learner's is "
    assert validity.refusal(other, identity).startswith(said)
    stepping = agent.stepping_identity(kind(**own), {"memory": level_spec("memory")})
    assert (
        validity.refusal(stepping | {"inference": "learner"}, identity | {"inference": "learner"})
        == ""
    )


def test_what_actors_and_learners_share_is_compared_and_named():
    own = {"level_name": "catch", "algorithm": "impala"}
    learner = agent.make_agent(ImpalaSettings(**own), 0).identity | {"inference": "actor"}
    stepping = agent.stepping_identity(ImpalaSettings(**own), {"catch": level_spec("catch")})
    all_words = list(learner["shared"])
    assert set(all_words) == {
        *("environment's options", "emulator", "algorithm (--algorithm)", "--reward_clipping"),
        *("--deterministic_run", "observations and actions"),
        *("network (--agent_name and the flags of networks)", "layout of parameters"),
        "unroll layout (--unroll_length, observations, actions)",
        "normalisation (--normalize_observations, --subtract_mean_image, --normalize_rewards, "
        "--value_normalization)",
        "size of rewards (--reward_scaling, --max_abs_reward)",
        "policy of Box actions (--box_policy, --box_deviation)",
        *(words for words in all_words if words.endswith(", a flag of the algorithm,")),
    }
    for one, of_learner in (
        (learner, learner),
        (stepping | {"inference": "learner"}, learner | {"inference": "learner"}),
    ):
        for words in one["shared"]:
            other = one | {"shared": one["shared"] | {words: "OTHER"}}
            said = f"this actor's {words} is OTHER, the learner's is {learner['shared'][words]}"
            assert validity.refusal(other, of_learner) == said
    rewards = {"reward_clipping": "abs_one", "reward_scaling": 0.5}
    other = agent.stepping_identity(
        ImpalaSettings(**own, **rewards), {"catch": level_spec("catch")}
    )
    said = validity.refusal(other | {"inference": "learner"}, learner | {"inference": "learner"})
    assert said == "", "an actor that steps has no network, which reads rewards"


def test_an_actor_that_scales_rewards_otherwise_is_refused():
    learner, actor = (
        agent.make_agent(ImpalaSettings(level_name="catch", reward_scaling=scaling), 0).identity
        for scaling in (1.0, 0.5)
    )
    ours, _, theirs = validity.refusal(actor, learner).partition(", the learner's is ")
    assert "--reward_scaling" in ours
    assert "scaled by 0.5" in ours
    assert "scaled by 1" in theirs


@pytest.mark.parametrize("algorithm", ["impala", "vmpo", "r2d2", "sac"])
def test_an_actor_needs_none_of_the_flags_that_our_algorithms_read_in_learners_alone(algorithm):
    """Each of these flags is given another value here than an actor has."""
    kind = Config.of_algorithm(algorithm)
    shared = {f.name for f in dataclasses.fields(Config)}
    own = [f for f in dataclasses.fields(kind) if f.name not in shared]
    own = [f for f in own if info(f).learner_only]
    assert len(own) > 6
    level_name = "Pendulum-v1" if algorithm == "sac" else "CartPole-v1"
    actor = kind(level_name=level_name, algorithm=algorithm)
    learner = dataclasses.replace(actor, **{f.name: _another_value(f) for f in own})
    identities = (
        agent.make_agent(config, 0, role=Role.ACTOR).identity for config in (actor, learner)
    )
    assert validity.refusal(*identities) == ""


def _another_value(field):
    """Return a value of a flag that is not its default, and that any network allows."""
    fitting = {
        "minibatch_of": "unrolls",
        "trust_region": math.inf,  # V-trace alone has one
        "teacher_data_share": 0.0,  # for students of values alone
        "minibatch_steps": 512,
        "replay_steps": 5000,
        **{"learning_rate_kl": 0.0, "decoupled_kl": False},  # which exclude others
        **{"random_shift": 0, "value_shifts": 1, "target_shifts": 1},  # for images alone
    }
    if field.name in fitting:
        return fitting[field.name]
    if info(field).choices:
        return next(choice for choice in info(field).choices if choice != field.default)
    if field.type is bool:
        return not field.default
    if field.type is str:
        return "runs/other"
    return 0.25 if field.type is float else 2


def test_recorded_games_have_no_level_and_popart_needs_it(capsys):
    given = {"value_normalization": "popart", "offline_updates": 5, "teacher": "x"}
    one = Config.of_algorithm("impala")(level_name="CartPole-v1", **given)
    agent.make_agent(one, None)
    with pytest.raises(SystemExit):
        agent.make_agent(dataclasses.replace(one, level_name="CartPole-v0,CartPole-v1"), None)
    assert "recorded games (--offline_updates, --teacher_data_share)" in capsys.readouterr().err
