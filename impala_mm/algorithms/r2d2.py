"""R2D2: recurrent Q-learning from replayed sequences (Kapturowski et al. 2019).

Before its steps, an unroll has `burn_in` entries of the unroll before, which only fill the
networks' memory, from the state that the actor recorded. So unrolls overlap by these.
"""

from impala_mm.algorithms import networks
from impala_mm.algorithms.feature import NO_FEATURES, Features
from impala_mm.algorithms.interface import Role
from impala_mm.algorithms.q_learning import QLearning
from impala_mm.algorithms.r2d2_settings import Settings
from impala_mm.config.settings import Config
from impala_mm.environments.types import EnvironmentSpec


def make(
    config: Config,
    environment: EnvironmentSpec,
    role: Role = Role.LEARNER,
    features: Features = NO_FEATURES,
) -> "R2D2":
    """Return the algorithm for this environment; only a learner's has an optimizer."""
    return R2D2(Settings.of(config), environment, role, features)


class R2D2(QLearning):
    """Q-learning with a memory, by default the LSTM that suits the observations."""

    def __init__(
        self, config: Settings, environment: EnvironmentSpec, role: Role, features: Features
    ):
        network = networks.chosen_name(config, environment)
        if config.agent_name == "auto":
            network = network.replace("Agent", "LSTMAgent")
        super().__init__(
            config, environment, role, features, 1 + config.burn_in, config.burn_in, network
        )
        if remembered := self._online.short_memory:
            memory = f"R2D2 with {self.network_name}, which remembers {remembered}"
            if config.burn_in:
                memory += (
                    f": --burn_in={config.burn_in} entries of each unroll are read for nothing: "
                    f"give --burn_in=0, or leave --agent_name out for a network with an LSTM"
                )
            self.note = "; ".join(filter(None, [memory, self.note]))
