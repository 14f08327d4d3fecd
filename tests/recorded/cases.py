"""The cases of `record.py`: what is trained in each, a row per feature in its smallest setting.

A case has the flags of its row besides SMALL and those of its algorithm in BASES. `make test` runs
those of QUICK, `make test-slow` all. RUNS are the small runs of `runs.py`.
"""

import functools
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from impala_mm.environments.action_parts import Discrete
from impala_mm.environments.actions import ActionSpec
from impala_mm.environments.make import level_spec
from impala_mm.environments.types import EnvironmentSpec

SMALL = {"mlp_sizes": "6", "learning_rate": 0.01, "precision": "float32", "unroll_length": 4}
_EPOCHS = {"batch_size": 4, "epochs": 2, "minibatches": 2, "compile_updates": False}
# What each algorithm has besides: no XLA, which has no float64 of its own here, and few steps.
BASES: dict[str, dict[str, Any]] = {
    "impala": {},
    "ppo": _EPOCHS,
    "a2c": {"batch_size": 4, "compile_updates": False},
    "vpg": {"batch_size": 4, "compile_updates": False},
    "awr": _EPOCHS,
    "vmpo": _EPOCHS,
    "dqn": {},
    "r2d2": {"burn_in": 0, "n_steps": 2, "target_period": 2},
    "pqn": _EPOCHS,
    "sac": {
        "compile_updates": False, "batch_size": 1, "updates_per_step": 0.5, "minibatch_steps": 6,
        "replay_steps": 60, "critic_rate": 0.01, "temperature_rate": 0.01,
    },
    "td3": {
        "compile_updates": False, "batch_size": 1, "updates_per_step": 0.5, "minibatch_steps": 6,
        "replay_steps": 60, "critic_rate": 0.01, "random_steps": 0,
    },
    "mpo": {
        "compile_updates": False, "batch_size": 1, "updates_per_step": 0.5, "minibatch_steps": 6,
        "replay_steps": 60, "critic_rate": 0.01, "random_steps": 0, "target_period": 3,
    },
    "iql": {
        "compile_updates": False, "batch_size": 1, "updates_per_step": 0.5, "minibatch_steps": 6,
        "replay_steps": 60, "critic_rate": 0.01, "random_steps": 0,
    },
}  # fmt: skip


def _level(name: str, **options: Any) -> Callable[[], EnvironmentSpec]:
    return functools.partial(level_spec, name, **options)


def _frames() -> EnvironmentSpec:
    """Return the spec of a game whose images are stacked, as those of Atari are."""
    image = tf.TensorSpec([6, 5, 1], tf.uint8)
    return level_spec("CartPole-v1")._replace(observation=image, frame_stack=3)


_acting = "tests.helpers.acting:"
LEVELS = {
    "pole": _level("CartPole-v1"),  # Discrete
    "swing": _level("Pendulum-v1"),  # Box
    "locks": _level(f"{_acting}Locks-v0"),  # MultiDiscrete
    "harbour": _level(f"{_acting}Harbour-v0"),  # a Dict of all kinds
    "doors": _level(f"{_acting}Doors-v0"),  # masks of Discrete
    "rooms": _level(f"{_acting}Rooms-v0"),  # masks of MultiDiscrete
    "stalls": _level(f"{_acting}Stalls-v0"),  # masks in a Dict
    "signals": _level(f"{_acting}Signals-v0"),  # observations of all kinds
    "signs": lambda: level_spec(f"{_acting}Signals-v0")._replace(actions=ActionSpec(Discrete(4))),
    "image": lambda: _frames()._replace(frame_stack=1),
    "frames": _frames,
    "goals": _level("sandbox.bit_flip:BitFlip-v0", env_kwargs=json.dumps({"bits": 3})),
}


class Case(NamedTuple):
    """One row: three updates of an algorithm."""

    name: str
    algorithm: str
    level: str
    flags: dict[str, Any]
    teachers: int = 0  # how many teach, if the flags name one
    offline: bool = False  # by `offline_update`, from recorded games
    recorded: bool = False  # with columns of recorded games in each batch


_TAUGHT = {"teacher": "x", "teacher_cost": 0.5, "teacher_frames": 500.0}
_SCORED = _TAUGHT | {"teacher_return": 40.0, "random_return": 10.0}
_OFFLINE = {"offline_updates": 3, "teacher_data": "x"}
_POPART = {"value_normalization": "popart"}
_NORMALISED = {"normalize_observations": True, "normalize_rewards": True}
_LSTM = {"agent_name": "MLPLSTMAgent", "lstm_size": 5}
_REPLAY = {"replay": "queue:0.5,uniform:0.5:100"}
_C51 = {"value_distribution": "categorical", "num_atoms": 7, "v_min": -2.0, "v_max": 2.0}
_IQN = {
    "value_distribution": "quantiles", "num_quantiles": 3, "num_target_quantiles": 4,
    "num_policy_quantiles": 5,
}  # fmt: skip
_HALF_TANH = {"box_policy": "tanh", "box_deviation": "learnt"}


def _rows(algorithm: str, level: str, **flags: dict[str, Any]) -> list[Case]:
    """Return cases of one algorithm by their names; `default` stands for its own name."""
    return [
        Case(
            algorithm if name == "default" else f"{algorithm}-{name.replace('_', '-')}",
            algorithm,
            level,
            given,
            teachers=2 if "two_teachers" in name else int("teacher" in given),
            offline="offline" in name,
            recorded="data_share" in name,
        )
        for name, given in flags.items()
    ]


CASES = [
    *_rows(
        *("impala", "pole"),
        default={},
        mean={"loss_reduction": "mean"},
        lstm=_LSTM,
        separate={"separate_networks": True},
        layer_norm={"layer_norm": True, "activation": "gelu"},
        popart=_POPART,
        popart_lstm=_POPART | _LSTM,
        plain_values={"value_normalization": "none", "baseline_cost": 0.3},
        normalised=_NORMALISED,
        abs_one={"reward_clipping": "abs_one"},
        asymmetric={"reward_clipping": "soft_asymmetric", "reward_scaling": 2.0},
        largest_reward={"max_abs_reward": 0.4},
        gae={"advantages": "gae", "gae_lambda": 0.8},
        n_step={"advantages": "n_step", "n_steps": 2},
        vtrace_clips={"clip_rho_threshold": 1.3, "clip_c_threshold": 0.7, "vtrace_lambda": 1.0},
        pg_clip={"clip_pg_rho_threshold": 0.5},
        scaled_popart={"advantage_scaling": "batch"} | _POPART,
        huber={"huber_delta": 0.3},
        entropy_target={"target_entropy": 0.5},
        kl_pi_mu_target={"target_kl_pi_mu": 0.01},
        kl_mu_pi_target={"target_kl_mu_pi": 0.01, "multiplier_speed": 0.5},
        kl_uniform_target={"target_kl_ref_pi": 0.01},
        kl_reference={"kl_ref_pi_cost": 0.2, "reference": "x"},
        cloning=_REPLAY | {"policy_cloning_cost": 0.1, "value_cloning_cost": 0.05},
        cloning_all={"policy_cloning_cost": 0.1, "value_cloning_cost": 0.05, "cloned": "all"},
        cloning_popart=_REPLAY | _POPART | {"value_cloning_cost": 0.05},
        impact={"impact_clip": 0.1, "impact_target_updates": 2},
        impact_lstm={"impact_clip": 0.1, "impact_target_updates": 2} | _LSTM,
        impact_trust={"impact_clip": 0.1, "trust_region": 0.1},
        elite={"replay": "queue:0.5,elite:0.5:100"},
        attentive={"replay": "queue:0.5,attentive:0.5:100"} | _LSTM,
        teacher=_TAUGHT,
        two_teachers=_TAUGHT,
        teacher_qdagger=_SCORED | {"teacher_method": "qdagger"},
        teacher_both=_TAUGHT | {"distill": "policy_and_value"},
        teacher_popart=_TAUGHT | _POPART | {"distill": "policy_and_value"},
        teacher_best=_TAUGHT | {"distill": "best_action"},
        teacher_rate=_TAUGHT | {"teacher_rate": 0.02},
        guide=_TAUGHT | {"guide_steps": 3, "guide_share": 0.3},
        offline_popart=_OFFLINE | _TAUGHT | _POPART | _NORMALISED,
        rmsprop={"optimizer": "rmsprop", "momentum": 0.5},
        constant_rate={"learning_rate_schedule": "constant"},
        polynomial_rate={
            "learning_rate_schedule": "polynomial", "learning_rate_power": 2.0,
            "learning_rate_end": 0.001,
        },
        clipped_each={"gradients_clipping": 0.1, "gradients_clipping_mode": "variable_norm"},
        clipped_values={"gradients_clipping": 0.1, "gradients_clipping_mode": "value"},
    ),
    *_rows(
        *("impala", "swing"),
        box={},
        box_clipped_learnt={"box_policy": "clipped", "box_deviation": "learnt"},
        box_tanh={"box_policy": "tanh"},
        box_tanh_learnt=_HALF_TANH,
        box_normal_learnt={"box_policy": "normal", "box_deviation": "learnt"},
        box_teacher=_TAUGHT,
        box_reference={"kl_ref_pi_cost": 0.2, "reference": "x"},
        box_uniform={"kl_ref_pi_cost": 0.2, "box_policy": "tanh"},
    ),
    *_rows("impala", "locks", locks={}),
    *_rows("impala", "harbour", harbour={}),
    *_rows("impala", "doors", doors={}, doors_teacher=_TAUGHT),
    *_rows("impala", "rooms", rooms={"kl_mu_pi_cost": 0.1}),
    *_rows("impala", "stalls", stalls={"impact_clip": 0.1, "trust_region": 0.5}),
    *_rows("impala", "signals", signals={}),
    *_rows("impala", "image", image={"subtract_mean_image": True}),
    *_rows("impala", "frames", frames={}, frames_teacher=_TAUGHT | {"subtract_mean_image": True}),
    *_rows(
        *("ppo", "pole"),
        default={},
        lstm=_LSTM,
        unrolls={"minibatch_of": "unrolls"},
        one_network={"separate_networks": False},
        raw={"normalize_observations": False, "normalize_rewards": False},
        popart=_POPART,
        gae={"gae_lambda": 0.7, "clip": 0.05},
        vtrace={"advantages": "vtrace"},
        recomputed={"recompute_advantages": True},
        positive={"positive_advantages": True},
        value_clip={"value_clip": 0.05},
        target_kl={"target_kl": 0.0005, "epochs": 3},
        unscaled={"advantage_scaling": "none", "loss_reduction": "sum"},
        kl_targets={"target_kl_mu_pi": 0.01, "target_kl_pi_mu": 0.01, "target_kl_ref_pi": 0.01},
        teacher=_TAUGHT,
        two_teachers=_TAUGHT | {"distill": "policy_and_value"},
        teacher_qdagger=_SCORED | {"teacher_method": "qdagger"},
        offline=_OFFLINE | _TAUGHT,
        rmsprop={"optimizer": "rmsprop", "gradients_clipping_mode": "value"},
    ),
    *_rows("ppo", "swing", box_tanh=_HALF_TANH, box_teacher=_TAUGHT),
    *_rows("ppo", "harbour", harbour={}),
    *_rows("ppo", "stalls", stalls={"kl_mu_pi_cost": 0.1}),
    *_rows("ppo", "signals", signals={}),
    *_rows("ppo", "frames", frames={"subtract_mean_image": True}, frames_teacher=_TAUGHT),
    *_rows(
        *("a2c", "pole"),
        default={},
        ratio={"largest_ratio": 0.9, "epochs": 2, "minibatches": 2},
        offline=_OFFLINE | _TAUGHT,
    ),
    *_rows("vpg", "pole", default={}),
    *_rows(
        *("awr", "pole"),
        default={},
        positive={"positive_advantages": True, "temperature": 0.5, "largest_weight": 2.0},
        cloning={"temperature": float("inf")},
        offline=_OFFLINE | _TAUGHT,
    ),
    *_rows(
        *("vmpo", "pole"),
        default={},
        lstm=_LSTM,
        temperature={"temperature": 0.5, "target_weight_kl": 0.02, "temperature_speed": 0.3},
        offline=_OFFLINE | _TAUGHT,
        entropy_target={"target_entropy": 0.5} | _POPART,
    ),
    *_rows("vmpo", "swing", box={}),
    *_rows(
        *("dqn", "pole"),
        default={},
        single={"double_q": False},
        duelling={"duelling": True},
        duelling_units={"duelling": True, "duelling_units": 4},
        noisy={"noisy": True},
        rainbow={"noisy": True, "duelling": True, "n_steps": 3} | _C51,
        noisy_quantiles={"noisy": True} | _IQN,
        n_steps={"n_steps": 3},
        rescaled={"value_rescaling": 0.001},
        copied={"target_period": 2, "target_share": 1.0},
        squared={"huber_delta": float("inf"), "loss_reduction": "sum"},
        largest_error={"largest_error_share": 0.2},
        ladder={"epsilon_schedule": "ladder"},
        epsilon={"epsilon_frames": 400.0, "epsilon_start": 0.5},
        conservative={"cql_cost": 0.3, "cql_temperature": 0.5},
        teacher=_TAUGHT,
        two_teachers=_TAUGHT,
        teacher_both=_TAUGHT | {"distill": "policy_and_value"},
        teacher_best=_TAUGHT | {"distill": "best_action"},
        teacher_margin=_SCORED | {"teacher_method": "dqfd", "teacher_margin": 0.5},
        teacher_categorical=_TAUGHT | _C51,
        teacher_quantiles=_TAUGHT | _IQN,
        dagger=_TAUGHT | {"td_cost": 0.0, "teacher_method": "constant"},
        offline=_OFFLINE | {"margin_cost": 0.4, "cql_cost": 0.3},
        offline_teacher=_OFFLINE | _TAUGHT | _NORMALISED,
        data_share={"teacher_data_share": 0.25, "teacher_data": "x", "margin_cost": 0.4},
        rmsprop={"optimizer": "rmsprop", "gradients_clipping": 0.1},
    ),
    *_rows("dqn", "doors", doors={}, doors_teacher=_TAUGHT | {"distill": "value"}),
    *_rows("dqn", "signs", signals={}),
    *_rows(
        *("dqn", "frames"),
        frames_teacher=_TAUGHT,
        shifted={"random_shift": 1, "value_shifts": 2, "target_shifts": 2},
        shifted_quantiles={"random_shift": 1, "value_shifts": 2, "target_shifts": 2} | _IQN,
    ),
    *_rows(
        *("dqn", "goals"),
        hindsight={"her_ratio": 2},
        hindsight_categorical={"her_ratio": 2} | _C51,
    ),
    *_rows(
        *("r2d2", "pole"),
        default=_LSTM,
        burn_in=_LSTM | {"burn_in": 2},
        without_memory={"agent_name": "MLPAgent"},
        categorical=_LSTM | _C51 | {"burn_in": 1, "value_rescaling": 0.0},
        quantiles=_IQN | {"agent_name": "MLPAgent", "burn_in": 1, "huber_delta": 1.0},
        guide=_LSTM | _TAUGHT | {"guide_steps": 3},
        offline=_LSTM | _OFFLINE | {"margin_cost": 0.4, "burn_in": 2},
        data_share=_LSTM | {"teacher_data_share": 0.25, "teacher_data": "x", "margin_cost": 0.4},
        normalised=_LSTM | _NORMALISED | {"burn_in": 2},
    ),
    *_rows("r2d2", "goals", hindsight={"her_ratio": 2, "n_steps": 1, "agent_name": "MLPAgent"}),
    *_rows(
        *("pqn", "pole"),
        default={},
        lstm=_LSTM | {"duelling": True},
        categorical=_C51 | _NORMALISED,
        noisy_quantiles={
            "value_distribution": "quantiles", "num_quantiles": 3, "num_policy_quantiles": 5,
            "noisy": True, "huber_delta": 1.0,
        },
        rescaled={"value_rescaling": 0.001, "q_lambda": 0.9, "loss_reduction": "sum"},
        teacher=_TAUGHT,
    ),
    *_rows("pqn", "doors", doors={}, doors_teacher=_TAUGHT | {"distill": "value"}),
    *_rows("pqn", "frames", frames={"subtract_mean_image": True}),
    *_rows(
        *("sac", "swing"),
        default={},
        fixed={"fixed_temperature": True, "temperature": 0.3},
        target={"target_entropy": -0.3, "target_share": 0.1},
        lstm=_LSTM,
        teacher=_TAUGHT,
        teacher_best=_TAUGHT | {"distill": "best_action"},
        teacher_rate=_TAUGHT | {"teacher_rate": 0.02},
        offline_teacher=_OFFLINE | _TAUGHT | _NORMALISED,
    ),
    *_rows(
        *("sac", "pole"),
        discrete={"discrete_sac": True, "target_entropy_share": 0.5},
        guide={"discrete_sac": True, "guide_steps": 3} | _TAUGHT,
    ),
    *_rows("sac", "locks", locks={"discrete_sac": True}),
    *_rows(
        *("sac", "doors"),
        doors_teacher={"discrete_sac": True} | _TAUGHT,
    ),
    *_rows("sac", "frames", frames={"discrete_sac": True, "subtract_mean_image": True}),
    *_rows("sac", "goals", hindsight={"discrete_sac": True, "her_ratio": 2}),
    *_rows(
        *("sac", "swing"),
        redq={"num_critics": 4, "policy_value": "mean", "policy_delay": 2},
    ),
    *_rows(
        *("td3", "swing"),
        default={},
        ddpg={"num_critics": 1, "goal_critics": 1, "smoothing": 0.0, "policy_delay": 1},
        cloning={"cloning": 2.5},
    ),
    *_rows("mpo", "swing", default={}),
    *_rows(
        *("iql", "swing"),
        default={},
        lstm={"agent_name": "MLPLSTMAgent"},
    ),
    *_rows("iql", "doors", doors={"largest_weight": 1.1}),
]  # fmt: skip

# Some that have most parts of the code between them: what `make test` has time for.
QUICK = frozenset(
    """
    impala-popart-lstm impala-teacher-qdagger impala-impact-trust impala-offline-popart
    ppo-lstm vmpo dqn-rainbow r2d2-burn-in pqn-doors-teacher sac-discrete
    """.split()
)


class RunCase(NamedTuple):
    """A small run, whose folder is kept: its name, and its flags besides SMALL_RUN."""

    name: str
    flags: dict[str, Any]


SMALL_RUN = {
    "num_actors": 1, "num_envs": 2, "batch_size": 2, "unroll_length": 8, "mlp_sizes": "8",
    "total_environment_frames": 150, "keep_checkpoints": 1,
}  # fmt: skip
_LONG_LSTM = {"agent_name": "MLPLSTMAgent", "lstm_size": 6}
_ROUNDS = {"batch_size": 4, "epochs": 2, "minibatches": 2, "total_environment_frames": 200}
# One for each algorithm, and for each kind of state that a run saves.
RUNS = [
    RunCase(name, {"level_name": level, "algorithm": name.split("-")[0]} | flags)
    for name, level, flags in (
        ("impala", "CartPole-v1", {}),
        ("impala-popart", "CartPole-v1", _POPART | _NORMALISED | {"optimizer": "rmsprop"}),
        ("impala-impact", "CartPole-v1", _LONG_LSTM | {"impact_clip": 0.2}),
        ("impala-two-levels", "CartPole-v0,CartPole-v1", _LONG_LSTM | _NORMALISED),
        ("impala-multipliers", "Pendulum-v1", {"target_entropy": 0.5, "target_kl_mu_pi": 0.01}),
        (
            "impala-teacher",
            "CartPole-v1",
            {"teacher": "cartpole", "teacher_frames": 1000.0, "guide_steps": 3},
        ),
        ("impala-elite", "CartPole-v1", {"replay": "queue:0.5,elite:0.5:8", "replay_save": True}),
        ("ppo", "CartPole-v1", _ROUNDS),
        ("a2c", "CartPole-v1", {"batch_size": 4}),
        ("vpg", "CartPole-v1", {"batch_size": 4}),
        ("awr", "CartPole-v1", _ROUNDS),
        ("vmpo", "Pendulum-v1", _ROUNDS | _POPART),
        (
            "dqn",
            "CartPole-v1",
            {
                "replay": "queue:0.5,prioritised:0.5:8", "replay_save": True, "noisy": True,
                "teacher": "cartpole", "teacher_method": "dqfd", "teacher_frames": 1000.0,
                "teacher_return": 500.0, "random_return": 20.0,
            },
        ),
        (
            "r2d2",
            "CartPole-v1",
            _LONG_LSTM
            | {
                "replay": "queue:0.5,prioritised:0.5:8", "replay_save": True, "burn_in": 2,
                "n_steps": 2,
            },
        ),
        ("pqn", "CartPole-v1", _ROUNDS),
        (
            "sac",
            "Pendulum-v1",
            {
                "replay_save": True, "replay_steps": 100, "random_steps": 16,
                "minibatch_steps": 16, "compile_updates": False,
            },
        ),
    )
]  # fmt: skip
