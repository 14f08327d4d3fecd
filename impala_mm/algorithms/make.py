"""Makes the algorithm that --algorithm names, with its features, and checks one of the user's.

`config.algorithm_settings` says where algorithms are. Every process makes its own by
`agent.make_agent`, which calls this.
"""

import dataclasses
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import nets
from impala_mm.algorithms import features, flag_reads
from impala_mm.algorithms.interface import DEFAULT_SETUP, Algorithm, Role, Setup, defines
from impala_mm.config import algorithm_settings, auto, user_modules
from impala_mm.config.algorithm_settings import BUILT_IN, BadAlgorithm
from impala_mm.config.errors import UserMistake
from impala_mm.config.messages import describe_error
from impala_mm.config.settings import Config
from impala_mm.data import variable_names
from impala_mm.data.trajectory import UnrollSpec
from impala_mm.data.variables import Variables
from impala_mm.environments.actions import UnsuitableActions
from impala_mm.environments.types import EnvironmentSpec
from impala_mm.runtime import devices
from impala_mm.runtime.starter import process_rank

_METHODS = (Algorithm.initial_state, Algorithm.act, Algorithm.judge, Algorithm.update)


def make_algorithm(
    config: Config,
    environment: EnvironmentSpec,
    setup: Setup = DEFAULT_SETUP,
    read: set[str] | None = None,
) -> Algorithm:
    """Return the algorithm that --algorithm names, built for this environment.

    Of `setup`, the role and the levels are read; the rest is found here. The names of the flags
    that the algorithm reads, now or later, are added to `read`, unless that is None. A mistake in a
    user's algorithm ends the program with exit code 2. UnsuitableActions is raised if the
    environment offers masks and the algorithm does not declare that it reads them.
    """
    try:
        settings = dataclasses.replace(
            auto.for_task(Config.of_algorithm(config.algorithm).of(config), environment),
            precision=devices.resolve_precision(config.precision, environment.observation),
            discounting=_discount_per_step(config, environment),
        )
        if read is not None:
            settings = flag_reads.recording(settings, read)
        made = _make(settings, environment, setup)
    except BadAlgorithm as error:
        algorithm_settings.refuse(config.algorithm, error)
    if environment.masks and not made.masks:
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


def _make(config: Config, environment: EnvironmentSpec, setup: Setup) -> Algorithm:
    module, name, *_ = algorithm_settings.place_of(config.algorithm)
    try:
        make = getattr(user_modules.import_module(module), name, None)
    except user_modules.BadModule as error:
        raise BadAlgorithm(str(error)) from error.__cause__
    where = f"{module} ({sys.modules[module].__file__})"
    if not callable(make):
        raise BadAlgorithm(f"{where} defines no function make(config, environment, setup)")
    parameters = _parameters(make)
    if outdated := {"role", "features"} & {*parameters}:
        raise BadAlgorithm(
            f"make of {where} takes {_and(sorted(outdated))}: let it take (config, environment, "
            f"setup), and read setup.role and setup.features"
        )
    here = process_rank()
    try:
        setup = setup._replace(
            features=features.make(config, environment, setup.role),
            rank=here.rank,
            learners_here=max(here.local_size, config.num_learners),
        )
        made = make(config, environment, *([setup] if _takes_setup(parameters) else []))
    except (nets.Unsuitable, UnsuitableActions):
        raise
    except UserMistake as error:
        raise BadAlgorithm(str(error)) from None
    except Exception as error:
        if config.algorithm in BUILT_IN:
            raise
        raise BadAlgorithm(f"make of {where} raises {describe_error(error)}") from error
    _check(made, where)
    uncalled = [
        type(feature).__name__
        for feature in setup.features
        if feature not in set(made.features) and (feature.online or config.uses_recorded_games)
    ]
    if uncalled:
        raise BadAlgorithm(
            f"the flags ask for {_and(uncalled)} ({features.__name__}), which make of {where} does "
            f"not use: give its algorithm the features of `setup`, and call them "
            f"(impala_mm/algorithms/feature.py)"
        )
    rounds = made.rounds
    trains = setup.role in (Role.LEARNER, Role.ACTOR)
    has_settings = Config.of_algorithm(config.algorithm) is not Config
    if trains and has_settings and rounds != config.rounds:
        raise BadAlgorithm(
            f"{where} makes an algorithm with rounds = {rounds}, and its Settings have "
            f"rounds = {config.rounds}: give both the same"
        )
    return made


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function, by name."""
    try:
        return inspect.signature(function).parameters
    except ValueError:  # a function written in C
        return {}


def _takes_setup(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Return whether `make` takes a setup: a default of another name is the user's own."""
    third = list(parameters.values())[2:3]
    return any(p.name == "setup" or p.default is p.empty for p in third) or any(
        p.kind is p.VAR_POSITIONAL for p in parameters.values()
    )


def _check(made: Any, where: str) -> None:
    """Raise BadAlgorithm if the result of a user's `make` is no algorithm."""
    what = f"make of {where} returns"
    if not isinstance(made, Algorithm):
        of = "None" if made is None else _with_article(made)
        raise BadAlgorithm(
            f"{what} {of}, which is no algorithm: let its class inherit from "
            f"impala_mm.algorithms.interface.Algorithm"
        )
    what += f" {_with_article(made)}"
    names = [method.__name__ for method in _METHODS]
    if defines(made.act_by_number):
        names.remove("act")
    lacks = [name for name in ("unroll", "variables") if not hasattr(made, name)]
    lacks += [name for name in names if not defines(getattr(made, name))]
    if lacks:
        raise BadAlgorithm(
            f"{what} without {_and(lacks)}: impala_mm/algorithms/interface.py says what an "
            f"algorithm must define"
        )
    if wrong := [name for name in names if not callable(getattr(made, name))]:
        raise BadAlgorithm(f"{what} whose {_and(wrong)} are no functions")
    if not defines(made.act_by_number):
        try:
            inspect.signature(made.act).bind("entry", "core_state", "exploration")
        except TypeError as error:
            raise BadAlgorithm(
                f"{what} whose act must take (entry, core_state, exploration): {error}; to explore "
                f"by the environments' numbers, define act_by_number in its place"
            ) from None
    for member, value, kind in (
        ("unroll", made.unroll, UnrollSpec),
        ("variables", made.variables, Variables),
    ):
        if not isinstance(value, kind):
            raise BadAlgorithm(
                f"{what} whose {member} is {_with_article(value)}, not {_article(kind.__name__)}"
            )


def _with_article(value: Any) -> str:
    return _article(type(value).__name__)


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
