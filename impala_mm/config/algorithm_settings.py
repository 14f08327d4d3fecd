"""The settings of an algorithm: a class `Settings` in a light module beside the algorithm's module.

    @dataclasses.dataclass(frozen=True)
    class Settings(Config):
        batch_size: int = default(Config, "batch_size", 32)
        parts: int = flag(4, "Minibatches of a batch.", group="PPO", least=1)

        def __post_init__(self):  # optional: refuse values that do not fit together
            if self.batch_size % self.parts:
                raise ValueError(f"--parts={self.parts} does not divide --batch_size")

A dictionary `FOR_ATARI` of `Settings` has other defaults for games of Atari, by flag.

`--algorithm=my.ppo` has the flags of `Settings` in `my/ppo_settings.py`, or only the shared ones if
there is no such module. The frontend imports it, too, so it must not import TensorFlow.
"""

import dataclasses
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from impala_mm.config import flags, user_modules


class Place(NamedTuple):
    """The places of an algorithm and of the class of its settings."""

    module: str
    name: str  # of what makes the algorithm
    settings_module: str
    settings: str


def _built_in(name: str, family: str, module: str = "algorithm") -> Place:
    package = f"impala_mm.algorithms.{family}"
    return Place(f"{package}.{module}", name, f"{package}.settings", f"{name}Settings")


# The algorithms that belong to this project, as --algorithm names them.
BUILT_IN = {
    "impala": _built_in("Impala", "impala"),
    "ppo": _built_in("PPO", "policy_gradient", "variants"),
    "a2c": _built_in("A2C", "policy_gradient", "variants"),
    "vpg": _built_in("VPG", "policy_gradient", "variants"),
    "awr": _built_in("AWR", "policy_gradient", "variants"),
    "vmpo": _built_in("VMPO", "policy_gradient", "variants"),
    "dqn": _built_in("DQN", "q_learning"),
    "r2d2": _built_in("R2D2", "q_learning"),
    "pqn": _built_in("PQN", "q_learning", "pqn"),
    "sac": _built_in("SAC", "q_policy", "sac"),
    "td3": _built_in("TD3", "q_policy", "td3"),
    "mpo": _built_in("MPO", "q_policy", "mpo"),
    "iql": _built_in("IQL", "q_policy", "iql"),
}
_TYPES = (int, float, bool, str)


class BadAlgorithm(Exception):
    """An algorithm's module or settings cannot be used; the message says why, without its name.

    The cause is the exception that the user's code raised, if it did.
    """


# Algorithms by which others train several agents.
_OF_SEVERAL_AGENTS = ("coma", "ippo", "maddpg", "mappo", "masac", "matd3", "qmix", "vdn")


def place_of(algorithm: str) -> Place:
    """Return the places of the algorithm that --algorithm names and of its settings."""
    of_users = Place(algorithm, "make", f"{algorithm}_settings", "Settings")
    return BUILT_IN.get(algorithm, of_users)


def settings_type(algorithm: str, base: type) -> type:
    """Return the type of an algorithm's settings: `base`, or its subclass beside the algorithm.

    Raises BadAlgorithm if there is no such algorithm, or if its settings cannot be used.
    """
    place = place_of(algorithm)
    beside = place.settings_module
    try:
        user_modules.check_exists(place.module)
        if not user_modules.exists(beside):
            return base
        settings = getattr(user_modules.import_module(beside), place.settings, None)
    except user_modules.BadModule as error:
        if error.__cause__:
            raise BadAlgorithm(str(error)) from error.__cause__
        if algorithm.lower() in _OF_SEVERAL_AGENTS:
            raise BadAlgorithm(
                "there is no algorithm here that trains several agents with what all of them see, "
                "or a policy for each: one policy plays for all agents with every algorithm, such "
                "as --algorithm=ppo (sandbox/several_agents.md)"
            ) from None
        raise BadAlgorithm(
            f"there is no such algorithm; write {', '.join(BUILT_IN)} or the name of a module of "
            f"yours (package.module): {error}"
        ) from None
    if mistake := _why_unsuitable(settings, base):
        raise BadAlgorithm(f"{beside}{mistake}")
    assert isinstance(settings, type)
    return settings


def _why_unsuitable(settings: Any, base: type) -> str:
    """Return what is wrong with a module's `Settings`, after the module's name; usually empty."""
    if not (isinstance(settings, type) and issubclass(settings, base)):
        what = "defines no class Settings" if settings is None else f"has the Settings {settings!r}"
        return f" {what}: it must be a subclass of impala_mm.config.settings.{base.__name__}"
    if "__dataclass_fields__" not in vars(settings):
        return ".Settings is no dataclass: write @dataclasses.dataclass(frozen=True) above it"
    shared = {f.name: f for f in _fields(base)}
    kinds = typing.get_type_hints(settings)
    for f in _fields(settings):
        name = f.name
        kind = f.type = kinds[name]  # a string, if the module postpones annotations
        if not flags.is_flag(f):
            return f".Settings.{name} is no flag: define it by impala_mm.config.flags.flag(...)"
        if kind not in _TYPES:
            return f".Settings.{name}: a flag is an int, float, bool or str"
        before = shared.get(name, f)
        if (flags.info(f), kind) != (flags.info(before), before.type):
            return (
                f".Settings.{name} is a flag of all algorithms: flags.default({base.__name__}, "
                f'"{name}", ...) changes its default; or give yours another name'
            )
    return ""


def _fields(config: Any) -> tuple[dataclasses.Field, ...]:
    return dataclasses.fields(config)


def of_all(base: type) -> dict[str, tuple[dataclasses.Field, list[str]]]:
    """Return the own flags of all our algorithms by name, and the algorithms that have it."""
    shared = {f.name for f in _fields(base)}
    own: dict[str, tuple[dataclasses.Field, list[str]]] = {}
    for algorithm in BUILT_IN:
        for f in _fields(settings_type(algorithm, base)):
            if f.name not in shared:
                own.setdefault(f.name, (f, []))[1].append(algorithm)
    return own


def of_arguments(text_of: Callable[[str], str], base: type) -> type:
    """Return the type of the settings of the algorithm that the command line names.

    `text_of` returns the text of a flag that all algorithms have. What is wrong with the algorithm
    ends the program with exit code 2 and one sentence, after the traceback of what the user's code
    raised.
    """
    algorithm = text_of("algorithm")
    if algorithm in BUILT_IN and (own := Path(f"{algorithm}.py")).is_file():
        flags.warn(
            f"--algorithm={algorithm} is built in, and {own} here is not used: rename the file"
        )
    try:
        settings: Any = settings_type(algorithm, base)
        suited: type = settings.suited_to(text_of("level_name"))
        return suited
    except BadAlgorithm as error:
        refuse(algorithm, error)


def refuse(algorithm: str, error: BadAlgorithm) -> NoReturn:
    """End the program because of a user's algorithm; show where their code raised, if it did."""
    user_modules.show_cause(error)
    flags.refuse(f"--algorithm={algorithm}: {error}")
