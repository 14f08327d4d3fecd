"""Optional parts of learning, one module each, which algorithms call by the seam in `feature`.

`algorithms.make` makes those that the flags ask for. No algorithm imports this package.
"""

from impala_mm.algorithms.feature import Feature, Features
from impala_mm.algorithms.features import (
    adaptive_rate,
    clear,
    guide,
    hindsight,
    recorded_actions,
    regularisers,
    rnd,
    teacher,
)
from impala_mm.algorithms.types import Role
from impala_mm.config.settings import Config
from impala_mm.environments.types import EnvironmentSpec

# The modules, in the order in which their features are called: hindsight changes the batch that
# the others read.
MODULES = (
    hindsight,
    regularisers,
    rnd,
    adaptive_rate,
    teacher,
    guide,
    recorded_actions,
    clear,
)


def make(config: Config, environment: EnvironmentSpec, role: Role) -> Features:
    """Return the features that the flags ask for."""
    made: list[Feature] = []
    for module in MODULES:
        made += module.make(config, environment, role)
    return Features(made)
