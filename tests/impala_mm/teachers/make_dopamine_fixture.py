"""Write the checkpoints in dopamine/ with the real Dopamine: agents, networks and checkpointer.

    PYTHONPATH=tests/helpers python tests/impala_mm/teachers/make_dopamine_fixture.py

It needs an environment of its own: Python 3.11 with dopamine-rl 4.1.2, jax 0.4.35, flax 0.10.0,
optax 0.2.3, orbax-checkpoint 0.7.0, tensorstore 0.1.66, tensorflow-cpu 2.18.0, tf-keras 2.18.0 and
tensorflow-probability 0.25.0 (the versions that it ran with). Atari's games are not needed.

The networks have their true size, 4 million weights. So that the files compress from 48 MB to some
kilobytes, few weights stay as the agent has initialised them, and the others are 0. Besides
each checkpoint stand the values that Dopamine's own network computes with these weights.
"""

import lzma
import sys
import tempfile
import types
from pathlib import Path

# Dopamine imports it for its PPO only; it is not on PyPI for this Python.
for name in ("baselines", "baselines.common", "baselines.common.atari_wrappers"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["baselines.common"].atari_wrappers = None

import gin  # noqa: E402
import jax  # noqa: E402
import numpy as np  # noqa: E402
from dopamine.discrete_domains import checkpointer  # noqa: E402
from dopamine.jax.agents.dqn import dqn_agent  # noqa: E402
from dopamine.jax.agents.rainbow import rainbow_agent  # noqa: E402
from dopamine_stacks import stacks  # noqa: E402

FOLDER = Path(__file__).parent / "dopamine"
ACTIONS = 4  # as Breakout has


def thinned(weights):
    """Return weights of which one of 7 is kept, or one of 307 of millions; these are larger."""
    flat = np.array(weights).ravel()
    every = 7 if flat.size < 1_000_000 else 307
    flat[np.arange(flat.size) % every != 0] = 0
    return jax.numpy.asarray(np.float32(flat * every**0.5).reshape(weights.shape))


def write(name, agent, *further):
    """Write an agent's checkpoint and its values of `stacks`."""
    kernels = jax.tree_util.tree_map(
        lambda x: thinned(x) if x.ndim > 1 else x + np.float32(0.01), agent.online_params
    )
    agent.online_params = agent.target_network_params = kernels
    with tempfile.TemporaryDirectory() as folder:
        bundle = agent.bundle_and_checkpoint(folder, 3)
        bundle["current_iteration"] = 3
        bundle["logs"] = {"iteration_0": {"train_episode_returns": [1.0, np.float64(2.0)]}}
        checkpointer.Checkpointer(folder, "ckpt").save_checkpoint(3, bundle)
        content = (Path(folder) / "ckpt.3").read_bytes()
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.xz").write_bytes(lzma.compress(content, preset=9))
    values = [
        agent.network_def.apply(agent.online_params, stack, *further).q_values for stack in stacks()
    ]
    np.save(FOLDER / f"{name}_values.npy", np.stack(values))


if __name__ == "__main__":
    gin.parse_config("ReplayBuffer.batch_size=2\nReplayBuffer.max_capacity=50")
    gin.parse_config("PrioritizedSamplingDistribution.max_capacity=50")
    write("dqn", dqn_agent.JaxDQNAgent(ACTIONS, seed=1))
    rainbow = rainbow_agent.JaxRainbowAgent(ACTIONS, seed=2)
    write("rainbow", rainbow, rainbow._support)
