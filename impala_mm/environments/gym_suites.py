"""The suites of registries: gymnasium's ids, those that a module registers, and classic gym's.

The first is the fall-back for all names of levels: an id, `my_package:ID` where importing the
module registers the id, or `my_package:make_env`, a function or class that makes an environment.
"""

import copy
import difflib
import importlib.util
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from impala_mm.config import user_modules
from impala_mm.config.environment_flags import is_atari
from impala_mm.environments import SUITES, Level, Suite, gym_adapter, packages
from impala_mm.environments.levels import MadeLevel, find_callable, import_module
from impala_mm.environments.types import BadLevel, Options
from impala_mm.environments.vectors import level_of


class Gymnasium(Suite):
    """Ids of gymnasium's registry and of classic gym's, and what makes environments in a module."""

    def find(self, level: str, level_name: str, options: Options) -> Level:
        """Return the level of this name, as the suite plays it to which the id belongs."""
        suites = [SUITES[name]() for name in SUITES.names]  # some register ids when imported
        module, _, name = level_name.rpartition(":")
        if not module and name not in gymnasium.registry:
            module = packages.module_of(name)
        if module:
            import_module(module, name, level_name)
        if name in gymnasium.registry:
            registered = gymnasium.registry[name]
            adopted = (suite.adopt(level_name, registered, options) for suite in suites)
            return next(filter(None, adopted), None) or _registered(level_name, registered, options)
        if module and (maker := find_callable(module, name, level_name)):
            return level_of(level_name, maker, options)
        theirs = gym_adapter.classic_registry()
        if name in theirs:
            return _registered(level_name, gym_adapter.gymnasiums_spec(name), options)
        if module:
            _refuse_of_module(level_name, module, name, _registered_by(module, theirs))
        names = [name for name in SUITES.names if name[0] != "."]
        _refuse(level_name, name, [*gymnasium.registry, *theirs, *names])


class ClassicGym(Suite):
    """Ids of classic gym's registry, where both libraries have the id."""

    def find(self, level: str, level_name: str, options: Options) -> Level:
        """Return the level of an id, which may follow the module that registers it."""
        module, _, name = level.rpartition(":")
        if module:
            import_module(module, name, level_name)
        if importlib.util.find_spec("gym") is None:
            raise BadLevel(f"{level_name} needs classic gym: pip install gym==0.26.2")
        theirs = gym_adapter.classic_registry()
        if name in theirs:
            return _registered(level_name, gym_adapter.gymnasiums_spec(name), options)
        _refuse(level_name, name, theirs)


def _registered(level_name: str, registered: EnvSpec, options: Options) -> MadeLevel:
    """Return the level of a spec, made without the wrappers that only check its use."""
    unchecked = copy.copy(registered)
    unchecked.order_enforce = False
    entry_point = registered.entry_point

    def creator() -> Any:
        return load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point

    # gymnasium takes environments of its own API alone, and wraps a time limit around them.
    unchecked.entry_point = lambda **kwargs: gym_adapter.adapt(creator()(**kwargs))

    def make(**kwargs: Any) -> Any:
        made = gymnasium.make(unchecked, disable_env_checker=True, **kwargs)
        if made.unwrapped.spec:
            made.unwrapped.spec.entry_point = entry_point
        return made

    module = entry_point if isinstance(entry_point, str) else "another"
    return MadeLevel(level_name, make, options, creator, module, registered.reward_threshold)


def _registered_by(module: str, theirs: Mapping[str, Any]) -> list[str]:
    """Return the ids whose environments are defined in the package of a module."""
    package = module.partition(".")[0]
    registered = [*gymnasium.registry.items(), *theirs.items()]
    return [id_ for id_, spec in registered if _package_of(spec.entry_point) == package]


def _package_of(entry_point: Any) -> str:
    name = entry_point if isinstance(entry_point, str) else getattr(entry_point, "__module__", None)
    return (name or "").partition(":")[0].partition(".")[0]


def _near(level_name: str, name: str, ids: Iterable[str]) -> str:
    """Return a question for the ids that are spelt alike; empty if there are none."""
    spelt = {}  # lower case, with and without the part before a slash -> the id
    for id_ in ids:
        spelt[id_.rpartition("/")[2].lower()] = spelt[id_.lower()] = id_
    # ale_py has no Deterministic ids any more; NoFrameskip ids with our repeats are the same games.
    wanted = name.lower().replace("deterministic", "noframeskip")
    close = difflib.get_close_matches(wanted, spelt, n=3, cutoff=0.7)
    prefix = level_name.removesuffix(name)
    near = dict.fromkeys(prefix + spelt[match] for match in close)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _refuse(level_name: str, name: str, ids: Iterable[str]) -> NoReturn:
    """Raise BadLevel: there is no such id, and these are similar."""
    if is_atari(name) and not importlib.util.find_spec("ale_py"):
        raise BadLevel(f"{level_name} needs ale-py: pip install 'impala_mm[environments]'")
    hint = _near(level_name, name, ids) or (
        "; a level is the id of a gymnasium or gym environment such as CartPole-v1 or "
        "ALE/Pong-v5, my_package:MyEnv-v0, catch or memory"
    )
    raise BadLevel(f"there is no environment {level_name}{hint}")


def _refuse_of_module(level_name: str, module: str, name: str, ids: list[str]) -> NoReturn:
    """Raise BadLevel: a module that was imported has neither such an id nor such a function."""
    other = f", and it has no function or class {name}" if name.isidentifier() else ""
    some = f"; it registers {', '.join(ids[:5])}{', ...' if len(ids) > 5 else ''}"
    must = f': it must call gymnasium.register("{name}", ...) when it is imported'
    raise BadLevel(
        f"there is no environment {level_name}: {module} was imported from "
        f"{user_modules.path_of(module)}, but it does not register {name or 'an empty id'}{other}"
        f"{_near(level_name, name, ids) or (some if ids else must)}"
    )
