"""Every setting of an experiment: each flag of training is one field of `Config` and nothing else.

The fields stand in `run_settings` and `training_settings`, whose texts are those
of `--help`. The flags of one algorithm are those of a subclass, which `algorithm_settings` finds.
`command_line.parse` makes a `Config` from the command line.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

from impala_mm.config import algorithm_settings
from impala_mm.config.environment_flags import is_atari
from impala_mm.config.flags import OldName, default
from impala_mm.config.run_settings import RunSettings
from impala_mm.config.training_settings import TrainingSettings


class UpdateThreads(NamedTuple):
    """Numbers of TensorFlow's threads."""

    within: int = 1  # within one operation
    at_once: int = 1  # operations at the same time
    cores: int = 1  # that compute: a thread that waits, or answers actors, takes none


@dataclasses.dataclass(frozen=True)
class Config(TrainingSettings, RunSettings):
    """The settings of one process.

    All learners of a run must agree on them, except for those marked `own`, which belong to the
    process (its role, addresses and folders).
    """

    # Whether the algorithm plays in rounds. Actors that cannot fill them are then refused before
    # anything starts, instead of by the learner.
    rounds: ClassVar[bool] = False
    # Whether the algorithm has a replay of its own, which --replay_save saves, instead of --replay.
    own_replay: ClassVar[bool] = False
    # Whether its updates may be from recorded games: they need not know which policy played.
    learns_from_any_policy: ClassVar[bool] = False

    # The flags of all algorithms that a built-in algorithm does not read.
    ignored: ClassVar[frozenset[str]] = frozenset()

    # Other defaults for games of Atari, by flag.
    FOR_ATARI: ClassVar[Mapping[str, Any]] = {}

    # Other names of flags, by name.
    ALIASES: ClassVar = {"policy": "checkpoint", "import": "imports"}

    # Flags of earlier programs of this family: accepted, with a note that they are old.
    OLD_NAMES: ClassVar = {
        "learner_host": OldName("learner_hosts"),
        "actor_hosts": OldName(None, "actors listen at no address, they connect to their learner"),
    }

    def __post_init__(self) -> None:
        """Refuse values that do not fit together: settings that are joined call that of `super`."""

    @property
    def update_threads(self) -> UpdateThreads:
        """The threads that make the updates of a run's only learner fastest on a CPU."""
        return UpdateThreads()

    @property
    def guides(self) -> bool:
        """Whether a teacher acts in actors."""
        return False

    @property
    def uses_recorded_games(self) -> bool:
        """Whether the run needs recorded games."""
        return False

    @property
    def planned_offline_updates(self) -> int:
        """The number of updates from recorded games with which the run begins."""
        return 0

    @classmethod
    def of(cls, config: "Config") -> Self:
        """Return these settings as this type: without flags that it lacks, others by default."""
        if isinstance(config, cls):
            return config
        names = {f.name for f in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in vars(config).items() if name in names})

    @classmethod
    def suited_to(cls, level_name: str) -> type["Config"]:
        """Return this type with the defaults for these levels."""
        if not (cls.FOR_ATARI and is_atari(level_name)):
            return cls
        kinds = {f.name: f.type for f in dataclasses.fields(cls)}
        others = [(name, kinds[name], default(cls, name, x)) for name, x in cls.FOR_ATARI.items()]
        return dataclasses.make_dataclass(cls.__name__, others, bases=(cls,), frozen=True)

    @classmethod
    def of_algorithm(cls, name: str) -> type["Config"]:
        """Return the type of the settings of --algorithm=name; raise BadAlgorithm."""
        return algorithm_settings.settings_type(name, cls)
