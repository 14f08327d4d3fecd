"""VPG: the plain policy gradient (REINFORCE) with a baseline.

Its returns reach to the end of the unroll, where the baseline takes over.
"""

from impala_mm.algorithms.feature import NO_FEATURES, Features
from impala_mm.algorithms.interface import Role
from impala_mm.algorithms.policy_gradient import PolicyGradient
from impala_mm.algorithms.vpg_settings import Settings
from impala_mm.config.settings import Config
from impala_mm.environments.types import EnvironmentSpec


def make(
    config: Config,
    environment: EnvironmentSpec,
    role: Role = Role.LEARNER,
    features: Features = NO_FEATURES,
) -> "VPG":
    """Return the algorithm for this environment; only a learner's has an optimizer."""
    return VPG(Settings.of(config), environment, role, features)


class VPG(PolicyGradient):
    """The policy gradient, which makes one optimizer step per round by default."""
