"""Flags of algorithms that do not fit together, or are too small, are refused before a start."""

import pytest

from impala_mm.config import command_line
from impala_mm.config.settings import Config
from tests.helpers import in_process


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("ppo --minibatches=5", "does not divide --batch_size x --unroll_length=2048"),
        ("ppo --minibatches=5", ": use --minibatches=4 or 8"),
        ("ppo --minibatches=3000", "=2048: a minibatch needs at least one of them"),
        ("ppo --minibatch_of=unrolls --minibatches=32", "=32 is more than --batch_size=16"),
        ("ppo --clip=-0.1", "--clip=-0.1: it must be at least 0"),
        ("ppo --value_clip=-1", "--value_clip=-1.0: it must be at least 0"),
        ("ppo --huber_delta=0", "--huber_delta=0.0: it must be at least 1e-06"),
        ("ppo --max_abs_reward=0", "--max_abs_reward=0.0: it must be at least 1e-06"),
        ("ppo --kl_ref_pi_cost=inf", "--kl_ref_pi_cost=inf: it must be at least 0"),
        ("ppo --multiplier_speed=inf", "--multiplier_speed=inf: it must be at least 0"),
        ("ppo --mlp_sizes=64,0", "--mlp_sizes=64,0: it must be whole numbers of at least 1"),
        ("ppo --mlp_sizes=", "--mlp_sizes=: it must be whole numbers"),
        ("ppo --learning_rate_kl=0.01 --target_kl=0.02", "=0.02 ends the passes that would show"),
        ("ppo --learning_rate_kl=0.01 --teacher=x --teacher_rate=0.1", "=0.1 sets the rate, too"),
        ("impala --learning_rate_kl=0.01", "of --algorithm=impala; --algorithm=ppo has it"),
        ("sac --rnd_weight=1", "no flag --rnd_weight of --algorithm=sac; --algorithm=ppo has it"),
        ("awr --temperature=0", "--temperature=0.0: it must be at least 0.001"),
        ("awr --largest_weight=0.5", "it must be at least 1"),
        ("vmpo --target_weight_kl=inf", "--target_weight_kl=inf: it must be a finite number"),
        ("vmpo --target_weight_kl=7", "are at most 6.93 nats from equal ones"),
        ("vmpo --target_weight_kl=-1", "it must be at least 0"),
        ("vmpo --decoupled_kl --target_kl_mu_pi=0.1", "give --target_kl_mean and"),
        ("vmpo --decoupled_kl --kl_mu_pi_cost=1", "give --target_kl_mean and"),
        ("impala --teacher=x --distill=value --offline_updates=5", "--distill=policy_and_value"),
        ("impala --teacher=x --distill=margin", "use --distill=best_action, or --algorithm=dqn"),
        ("pqn --minibatches=5", "does not divide --batch_size x --unroll_length=512"),
        ("pqn --offline_updates=5 --teacher=x", "pqn learns only from rounds of its newest values"),
        ("pqn --teacher_data_share=0.5 --teacher=x", "--teacher_data_share=0.5: --algorithm=pqn"),
        ("pqn --teacher=x --guide_steps=5", "learns from what its own policy has played"),
        ("sac --replay=uniform:1:100", "sac has a replay of its own, of steps: leave it out"),
        ("sac --minibatch_steps=8 --updates_per_step=0.1", "has no room for the 32 new steps"),
        ("sac --replay_steps=100", "--replay_steps=100 is less than --minibatch_steps=256"),
        ("sac --teacher=x --distill=value", "sac learns values of actions and no others"),
        ("sac --teacher=x --teacher_method=dqfd", "--teacher_method=dqfd compares values of"),
        ("sac --her_ratio=4 --inference=learner", "--her_ratio=4: only an actor that chooses"),
        ("dqn --replay=queue:0.5,elite:0.5:100", "a Q-network records no features"),
        ("dqn --n_steps=0", "--n_steps=0: it must be at least 1"),
        ("dqn --num_atoms=1", "--num_atoms=1: it must be at least 2"),
        ("dqn --num_quantiles=0", "--num_quantiles=0: it must be at least 1"),
        ("dqn --num_policy_quantiles=0", "--num_policy_quantiles=0: it must be at least 1"),
        (
            "dqn --value_distribution=categorical --v_min=3 --v_max=3",
            "--v_min=3 is not below --v_max=3",
        ),
        (
            "dqn --value_distribution=categorical --value_rescaling=0.001",
            "would change: give --value_rescaling=0",
        ),
        (
            "dqn --value_distribution=quantiles --huber_delta=inf",
            "--value_distribution=quantiles needs a finite --huber_delta, not inf",
        ),
        ("dqn --noisy --noisy_scale=0", "--noisy with --noisy_scale=0 has no noise"),
        ("dqn --noisy --mlp_init_scale=1.4", "--noisy with --mlp_init_scale=1.4"),
        ("dqn --td_cost=0", "--td_cost=0: without the cost of a --teacher"),
        (
            "dqn --td_cost=0 --teacher=x --teacher_cost=0 --offline_updates=3",
            "--td_cost=0: without the cost of a --teacher",
        ),
        (
            "dqn --teacher=x --teacher_method=dqfd --distill=policy",
            "--teacher_method=dqfd with --distill=policy",
        ),
        ("dqn --her_ratio=4 --n_steps=3", "each step has goals of its own, so that a target"),
        ("dqn --her_ratio=4 --deterministic_run", "in each turn an actor sends what it has"),
        ("r2d2 --her_ratio=4 --n_steps=1", "--her_ratio=4 with --burn_in=10"),
        ("r2d2 --burn_in=21", "--burn_in=21 is longer than --unroll_length=20"),
        ("r2d2 --n_steps=21", "--n_steps=21 is longer than --unroll_length=20"),
    ],
)
def test_flags_that_do_not_fit_are_refused_before_anything_starts(capsys, given, said):
    with pytest.raises(SystemExit) as ended:
        command_line.parse(["experiment.py", *f"--algorithm={given}".split()], "", Config)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


MEMORY = {"agent_name": "MLPLSTMAgent", "batch_size": 4, "unroll_length": 6}
IMAGES = "tests.helpers.games:PictureCatch"


@pytest.mark.parametrize(
    ("name", "level", "settings", "said"),
    [
        ("ppo", "CartPole-v1", MEMORY | {"minibatches": 3}, "--minibatches=3 does not divide"),
        ("ppo", "CartPole-v1", MEMORY | {"minibatches": 8}, "is more than --batch_size=4"),
        ("ppo", "CartPole-v1", MEMORY | {"minibatch_of": "steps"}, "--minibatch_of=steps: MLPLSTM"),
        (
            "vmpo",
            "CartPole-v1",
            {"decoupled_kl": True},
            "actions of CartPole-v1 are Discrete(2)",
        ),
        ("dqn", "CartPole-v1", {"agent_name": "MLPLSTMAgent"}, "use --algorithm=r2d2, which reads"),
        ("dqn", "CartPole-v1", {"random_shift": 9}, "have the shape [4]: leave it out"),
        ("sac", "Pendulum-v1", {"random_shift": 9}, "have the shape [3]: leave it out"),
        ("sac", "Pendulum-v1", {"shared_network": True}, "Q-networks read vectors as they are"),
        ("dqn", IMAGES, {"random_shift": 99}, "--random_shift=99 shifts images of"),
        (
            "dqn",
            IMAGES,
            {"random_shift": 2, "subtract_mean_image": True},
            "not the mean that --subtract_mean_image subtracts",
        ),
    ],
)
def test_flags_that_do_not_fit_the_network_or_the_level_are_refused(
    capsys, name, level, settings, said
):
    with pytest.raises(SystemExit) as ended:
        in_process.made(name, level, **settings)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_infinities_and_zeros_that_mean_something_are_accepted():
    """Behaviour cloning is an infinite temperature, and a target of 0 is one."""
    given = "--algorithm=awr --temperature=inf --positive_advantages --target_kl_mu_pi=0".split()
    (config,), _ = command_line.parse(["experiment.py", *given], "", Config)
    assert (config.temperature, config.target_kl_mu_pi) == (float("inf"), 0)
