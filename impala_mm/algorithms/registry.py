"""Algorithms by name: those of this package, and modules that users write."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import tensorflow as tf

import nets
from impala_mm.algorithms import contract, features, flag_reads
from impala_mm.algorithms.feature import NO_FEATURES, Features
from impala_mm.algorithms.interface import Algorithm, EnvironmentNumber, Role
from impala_mm.config import algorithm_settings, auto, user_modules
from impala_mm.config.algorithm_settings import BUILT_IN, BadAlgorithm
from impala_mm.config.errors import UserMistake
from impala_mm.config.messages import describe_error
from impala_mm.config.settings import Config
from impala_mm.data import variable_names
from impala_mm.data.trajectory import Entry, UnrollSpec
from impala_mm.data.variables import Variables
from impala_mm.environments.actions import UnsuitableActions
from impala_mm.environments.types import EnvironmentSpec
from impala_mm.runtime import devices

# The members that an algorithm may leave out, with their defaults.
_OPTIONAL: dict[str, Any] = {
    "rounds": False,  # whether it trains in rounds, on unrolls of its newest policy alone
    # With rounds: whether the next one is played while the learner trains on the last one.
    "rounds_overlap": False,
    "masks": False,
    "load_policies": None,  # the method that loads the policies of other runs
    "source": None,  # a method that wraps the actors' queue, see `learner.batch_source`
    "batch_shape": None,  # the entries and columns of that source's batches
    "first_priorities": None,  # the method that gives new unrolls a priority for their replay
    "compare_features": None,  # the method that elite and attentive replay need
    "judge_unroll": None,  # the method that makes it a teacher, see `interface.Algorithm`
    "offline_update": None,  # the method that learns from recorded unrolls before it plays
    "start_after": None,  # the method that gives recorded unrolls the frames before them
    "recorded_source": None,  # the method that draws recorded steps for a source of its own
    "minibatch_columns": None,  # the columns beside which these are in a minibatch
    "note": "",  # what the learner says at the start
    "value_of": None,  # the method that gives a chosen action's value, for videos
    "made_of": {},  # what a resumed run must not change, by flag
    "network_name": "",  # the name of its network, if --agent_name=auto does not choose it
}
_METHODS = ("initial_state", "act", "judge", "update")


def make_algorithm(
    config: Config,
    environment: EnvironmentSpec,
    role: Role = Role.LEARNER,
    read: set[str] | None = None,
) -> Algorithm:
    """Return the algorithm that --algorithm names, built for this environment and role.

    The names of the flags that it reads, now or later, are added to `read`, unless that is None.
    A mistake in a user's algorithm ends the program with exit code 2. UnsuitableActions is raised
    if the environment offers masks and the algorithm does not declare that it reads them.
    """
    try:
        settings = dataclasses.replace(
            auto.for_task(Config.of_algorithm(config.algorithm).of(config), environment),
            precision=devices.resolve_precision(config.precision, environment.observation),
            discounting=_discount_per_step(config, environment),
        )
        if read is not None:
            settings = flag_reads.recording(settings, read)
        made = _make(settings, environment, role)
    except BadAlgorithm as error:
        algorithm_settings.refuse(config.algorithm, error)
    if environment.masks and not optional(made, "masks"):
        raise UnsuitableActions(
            f"{environment.level_name} offers masks of its actions, and the algorithm does not "
            f"declare that it reads them: let it read Entry.mask and give its class the attribute "
            f"masks = True, or remove the mask in a gymnasium.Wrapper"
        )
    variable_names.assign(made.variables, made)
    return made


def _discount_per_step(config: Config, environment: EnvironmentSpec) -> float:
    """Return the discount of a step; with --discount_per_frame, of all the frames that it takes."""
    frames = environment.action_repeats if config.discount_per_frame else 1
    return config.discounting**frames


def takes_environment(algorithm: Algorithm) -> bool:
    """Return whether an algorithm's `act` takes an `EnvironmentNumber` as its fourth argument."""
    parameters = inspect.signature(algorithm.act).parameters.values()
    positional = [p for p in parameters if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}]
    return len(positional) > 3 or any(p.kind is p.VAR_POSITIONAL for p in parameters)


def evaluated_act(algorithm: Algorithm) -> Callable[[Entry, Any, tf.Tensor], tuple[Any, Any, Any]]:
    """Return the `act` of an algorithm for environments outside of a run: each is number 0 of 1."""
    takes = takes_environment(algorithm)

    def act(entry: Entry, core_state: Any, exploration: tf.Tensor) -> tuple[Any, Any, Any]:
        number = tf.zeros(tf.shape(entry.first), tf.int32)
        environment = [EnvironmentNumber(number, tf.constant(1))] if takes else []
        return contract.act(algorithm, entry, core_state, exploration, *environment)

    return act


def features_of(algorithm: Algorithm) -> Features:
    """Return the features that an algorithm was given; another attribute `features` is its own."""
    given = getattr(algorithm, "features", None)
    return given if isinstance(given, Features) else NO_FEATURES


def optional(algorithm: Algorithm, name: str) -> Any:
    """Return a member that an algorithm may leave out, or its default."""
    return getattr(algorithm, name, _OPTIONAL[name])


def _make(config: Config, environment: EnvironmentSpec, role: Role) -> Algorithm:
    name = algorithm_settings.module_of(config.algorithm)
    try:
        module = user_modules.import_module(name)
    except user_modules.BadModule as error:
        raise BadAlgorithm(str(error)) from error.__cause__
    make = getattr(module, "make", None)
    if not callable(make):
        raise BadAlgorithm(f"{_where(module)} defines no function make(config, environment, role)")
    arguments = (config, environment, role) if _takes_role(make) else (config, environment)
    given = {}
    try:
        asked = features.make(config, environment, role)
        if "features" in _parameters(make):
            given["features"] = asked
        elif names := [
            type(feature).__name__
            for feature in asked
            if feature.online or config.uses_recorded_games
        ]:
            raise BadAlgorithm(
                f"the flags ask for {_and(names)} ({features.__name__}), which make of "
                f"{_where(module)} does not take: give it an argument `features`, and pass it on"
            )
        made = make(*arguments, **given)
    except (nets.UnknownNetwork, nets.Unsuitable, UnsuitableActions):
        raise
    except UserMistake as error:
        raise BadAlgorithm(str(error)) from None
    except Exception as error:
        if config.algorithm in BUILT_IN:
            raise
        raise BadAlgorithm(f"make of {_where(module)} raises {describe_error(error)}") from error
    _check(made, module)
    rounds = bool(optional(made, "rounds"))
    trains = role in (Role.LEARNER, Role.ACTOR)
    has_settings = Config.of_algorithm(config.algorithm) is not Config
    if trains and has_settings and rounds != config.rounds:
        raise BadAlgorithm(
            f"{_where(module)} makes an algorithm with rounds = {rounds}, and its Settings have "
            f"rounds = {config.rounds}: give both the same"
        )
    return made


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function, by name."""
    try:
        return inspect.signature(function).parameters
    except ValueError:  # a function written in C
        return {}


def _takes_role(make: Callable[..., Any]) -> bool:
    """Return whether a function takes a role besides the config and the environment."""
    parameters = [p for name, p in _parameters(make).items() if name != "features"]
    kinds = {p.kind for p in parameters}
    needed = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
    third = len(needed) > 2 and (needed[2].name == "role" or needed[2].default is inspect._empty)
    return third or inspect.Parameter.VAR_POSITIONAL in kinds


def _check(made: Any, module: ModuleType) -> None:
    """Raise BadAlgorithm if the result of a user's `make` is no algorithm."""
    what = f"make of {_where(module)} returns"
    if made is None:
        raise BadAlgorithm(f"{what} None instead of an algorithm")
    what += f" {_with_article(made)}"
    if lacks := [name for name in ("unroll", "variables", *_METHODS) if not hasattr(made, name)]:
        raise BadAlgorithm(
            f"{what} without {_and(lacks)}: impala_mm/algorithms/interface.py says what an "
            f"algorithm must define"
        )
    if getattr(made, "max_lag", None) is not None:
        raise BadAlgorithm(
            f"{what} whose max_lag={made.max_lag} has no effect any more; with rounds = True "
            f"every batch is played by the newest policy"
        )
    if wrong := [name for name in _METHODS if not callable(getattr(made, name))]:
        raise BadAlgorithm(f"{what} whose {_and(wrong)} are no functions")
    for member, kind in (("unroll", UnrollSpec), ("variables", Variables)):
        if not isinstance(value := getattr(made, member), kind):
            raise BadAlgorithm(
                f"{what} whose {member} is {_with_article(value)}, not {_article(kind.__name__)}"
            )


def _with_article(value: Any) -> str:
    return _article(type(value).__name__)


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _where(module: ModuleType) -> str:
    return f"{module.__name__} ({module.__file__})"
