"""Levels by name: which library has the id, how its environment is made, and what is similar.

`make.py` calls `find_level`. Every environment that a `Level` opens has gymnasium's API.
"""

import copy
import difflib
import importlib.util
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import gymnasium

from impala_mm.config import user_modules
from impala_mm.config.environment_flags import FILE_SUFFIX
from impala_mm.environments import gym_adapter, pickled, render
from impala_mm.environments.opening import (
    Opener,
    find_callable,
    import_module,
    takes_render_mode,
)
from impala_mm.environments.types import OWN_LEVELS, BadLevel, Options

if TYPE_CHECKING:
    from impala_mm.environments.atari.games import Game

gymnasium.register("impala_mm/Catch-v0", "impala_mm.environments.catch:Catch", reward_threshold=0.9)
gymnasium.register(
    "impala_mm/Memory-v0", "impala_mm.environments.memory:Memory", reward_threshold=0.95
)
gymnasium.register(
    "impala_mm/TMaze-v0", "impala_mm.environments.t_maze:TMaze", reward_threshold=0.95
)
if importlib.util.find_spec("ale_py"):
    import ale_py

    gymnasium.register_envs(ale_py)
    for _version, _sticky in ((0, 0.25), (4, 0.0)):  # ale_py registers only the v5 of this game
        gymnasium.register(
            f"SurroundNoFrameskip-v{_version}",
            "ale_py.env:AtariEnv",
            kwargs=gymnasium.registry["ALE/Surround-v5"].kwargs
            | {"repeat_action_probability": _sticky, "frameskip": 1},
        )


_ATARI = re.compile(r"^ALE/|(NoFrameskip|Deterministic)-v\d$")


class Level(NamedTuple):
    """A level that was found in a registry or in a module."""

    name: str  # as the user wrote it
    open: Callable[[bool], Any]  # makes one environment; given True, one that draws pictures
    reward_threshold: float | None = None
    registered: gymnasium.envs.registration.EnvSpec | None = None  # in gymnasium's registry

    def game(self, options: Options) -> "Game | None":
        """Return the Atari game, or None if the C++ vector does not play this level."""
        if self.registered is None or not importlib.util.find_spec("ale_py"):
            return None
        from impala_mm.environments.atari import games  # noqa: PLC0415

        return games.read_game(self.name, self.registered, options)


def find_level(level_name: str, env_kwargs: str = "", env_wrappers: str = "") -> Level:
    """Return the level of this name, from gymnasium, classic gym or a module; raise BadLevel.

    Its environments are made with `env_kwargs` and wrapped by `env_wrappers` (see `Options`).
    """
    given = env_kwargs, env_wrappers
    if level_name.endswith(FILE_SUFFIX):
        return Level(level_name, _factory_opener(level_name, pickled.load(level_name), given))
    classic = level_name.startswith("gym:")
    rest = level_name.removeprefix("gym:") if classic else level_name
    module, _, name = rest.rpartition(":")
    if module:
        import_module(module, name, level_name)
    else:
        name = OWN_LEVELS.get(name.lower(), name)
    if not classic and name in gymnasium.registry:
        registered = gymnasium.registry[name]
        opens = _opener(level_name, registered, given)
        return Level(level_name, opens, registered.reward_threshold, registered)
    if module and not classic and (factory := find_callable(module, name, level_name)):
        return Level(level_name, _factory_opener(level_name, factory, given))
    if classic and importlib.util.find_spec("gym") is None:
        raise BadLevel(f"{level_name} needs classic gym: pip install gym==0.26.2")
    theirs = gym_adapter.classic_registry()
    if name in theirs:
        spec = gym_adapter.gymnasiums_spec(name)
        return Level(level_name, _opener(level_name, spec, given), spec.reward_threshold)
    known = theirs if classic else [*gymnasium.registry, *theirs, *OWN_LEVELS]
    if module:
        known = _registered_by(module, theirs)
    _refuse(level_name, module, name, known)


def _opener(
    level_name: str, registered: gymnasium.envs.registration.EnvSpec, given: tuple[str, str]
) -> Opener:
    """Return a function that makes the environment, without wrappers that only check its use."""
    unchecked = copy.copy(registered)
    unchecked.order_enforce = False

    def creator() -> Any:
        creates: Any = registered.entry_point
        if isinstance(creates, str):
            creates = gymnasium.envs.registration.load_env_creator(creates)
        return creates

    # gymnasium takes environments of its own API alone, and wraps a time limit around them.
    unchecked.entry_point = lambda **kwargs: gym_adapter.adapt(creator()(**kwargs))

    def make(**kwargs: Any) -> Any:
        made = gymnasium.make(unchecked, disable_env_checker=True, **kwargs)
        if made.unwrapped.spec:
            made.unwrapped.spec.entry_point = registered.entry_point
        return made

    return Opener(level_name, make, lambda: _draws(creator()), *given)


def _factory_opener(level_name: str, factory: Callable[..., Any], given: tuple[str, str]) -> Opener:
    return Opener(level_name, factory, lambda: _draws(factory), *given)


def _draws(creator: Callable[..., Any]) -> bool:
    """Return whether a class or function makes environments that draw pictures if it is told so.

    A class that declares its render modes may refuse others; a function declares none.
    """
    if isinstance(creator, type) and render.declared_modes(creator):
        return render.can_render(creator) and takes_render_mode(creator, among_others=True)
    return takes_render_mode(creator)


def _registered_by(module: str, theirs: Mapping[str, Any]) -> list[str]:
    """Return the ids whose environments are defined in the package of a module."""
    package = module.partition(".")[0]
    registered = [*gymnasium.registry.items(), *theirs.items()]
    return [id_ for id_, spec in registered if _package_of(spec.entry_point) == package]


def _package_of(entry_point: Any) -> str:
    name = entry_point if isinstance(entry_point, str) else getattr(entry_point, "__module__", None)
    return (name or "").partition(":")[0].partition(".")[0]


def _refuse(level_name: str, module: str, name: str, known: Iterable[str]) -> NoReturn:
    """Raise BadLevel: there is no such id, and these are similar.

    `known` are the ids of `module` alone if the name has one.
    """
    prefix = level_name.removesuffix(name) if ":" in level_name else ""
    spelt = {}  # lower case, with and without the part before a slash -> the id
    for id_ in known:
        spelt[id_.rpartition("/")[2].lower()] = id_
    spelt |= {id_.lower(): id_ for id_ in known}
    # ale_py has no Deterministic ids any more; NoFrameskip ids with our repeats are the same games.
    wanted = name.lower().replace("deterministic", "noframeskip")
    close = difflib.get_close_matches(wanted, spelt, n=3, cutoff=0.7)
    near = list(dict.fromkeys(prefix + spelt[match] for match in close))
    hint = f"; did you mean {' or '.join(near)}?"
    if module:
        ids = list(dict.fromkeys(spelt.values()))
        other = f", and it has no function or class {name}" if name.isidentifier() else ""
        if not near:
            hint = (
                f"; it registers {', '.join(ids[:5])}{', ...' if len(ids) > 5 else ''}"
                if ids
                else f': it must call gymnasium.register("{name}", ...) when it is imported'
            )
        raise BadLevel(
            f"there is no environment {level_name}: {module} was imported from "
            f"{user_modules.path_of(module)}, but it does not register "
            f"{name or 'an empty id'}{other}{hint}"
        )
    if _ATARI.search(name) and not importlib.util.find_spec("ale_py"):
        raise BadLevel(f"{level_name} needs ale-py: pip install 'impala_mm[environments]'")
    if not near:
        raise BadLevel(
            f"there is no environment {level_name}; a level is the id of a gymnasium or gym "
            "environment such as CartPole-v1 or ALE/Pong-v5, my_package:MyEnv-v0, catch or memory"
        )
    raise BadLevel(f"there is no environment {level_name}{hint}")
