"""DQN: deep Q-learning (Mnih et al. 2015), and the parts of Rainbow that change its targets.

An unroll overlaps the one before by as many entries as a target has rewards, so that each of its
steps has a whole target, and is trained on in one unroll alone.
"""

from impala_mm.algorithms.dqn_settings import Settings
from impala_mm.algorithms.feature import NO_FEATURES, Features
from impala_mm.algorithms.interface import Role
from impala_mm.algorithms.q_learning import QLearning
from impala_mm.config.settings import Config
from impala_mm.environments.types import EnvironmentSpec


def make(
    config: Config,
    environment: EnvironmentSpec,
    role: Role = Role.LEARNER,
    features: Features = NO_FEATURES,
) -> QLearning:
    """Return the algorithm for this environment; only a learner's has an optimizer."""
    config = Settings.of(config)
    return QLearning(config, environment, role, features, overlap=config.n_steps)
