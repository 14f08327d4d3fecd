"""DQN and R2D2, which differ in how their unrolls overlap."""

from impala_mm.algorithms.interface import DEFAULT_SETUP, Setup
from impala_mm.algorithms.parts import networks
from impala_mm.algorithms.q_learning.algorithm import QLearning
from impala_mm.algorithms.q_learning.settings import DQNSettings, R2D2Settings
from impala_mm.config.settings import Config
from impala_mm.environments.types import EnvironmentSpec


class DQN(QLearning):
    """Deep Q-learning (Mnih et al. 2015), and the parts of Rainbow that change its targets.

    An unroll overlaps the one before by as many entries as a target has rewards, so that each of
    its steps has a whole target, and is trained on in one unroll alone.
    """

    def __init__(self, config: Config, environment: EnvironmentSpec, setup: Setup = DEFAULT_SETUP):
        config = DQNSettings.of(config)
        super().__init__(config, environment, setup, overlap=config.n_steps)


class R2D2(QLearning):
    """Recurrent Q-learning from replayed sequences (Kapturowski et al. 2019).

    Before its steps, an unroll has `burn_in` entries of the unroll before, which only fill the
    networks' memory, from the state that the actor recorded. So unrolls overlap by these. The
    network is by default the one with an LSTM that suits the observations.
    """

    def __init__(self, config: Config, environment: EnvironmentSpec, setup: Setup = DEFAULT_SETUP):
        config = R2D2Settings.of(config)
        network = networks.chosen_name(config, environment)
        if config.agent_name == "auto":
            network = network.replace("Agent", "LSTMAgent")
        super().__init__(
            config,
            environment,
            setup,
            overlap=1 + config.burn_in,
            burn_in=config.burn_in,
            network=network,
        )
        if remembered := self._online.short_memory:
            memory = f"R2D2 with {self.network_name}, which remembers {remembered}"
            if config.burn_in:
                memory += (
                    f": --burn_in={config.burn_in} entries of each unroll are read for nothing: "
                    f"give --burn_in=0, or leave --agent_name out for a network with an LSTM"
                )
            self.note = "; ".join(filter(None, [memory, self.note]))
