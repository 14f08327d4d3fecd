"""Levels whose environments are made one by one: by a class or function, with gymnasium's API.

A suite names the maker of a level. Its environments are made with --env_kwargs, wrapped, and step
in a `GymVector`, or in several in worker processes. It does not import TensorFlow where no spec is
asked for: worker processes and the check do without it.
"""

import contextlib
import difflib
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from impala_mm.config import user_modules
from impala_mm.config.auto import split_evenly
from impala_mm.config.environment_flags import WrapperCall, json_text, read_kwargs, read_wrappers
from impala_mm.config.messages import describe_error, error_message, is_users_file, join_lines
from impala_mm.environments import Level, agents, gym_adapter, masks
from impala_mm.environments.spaces import SpaceConversion, read_spaces
from impala_mm.environments.types import (
    GENERAL_FLAGS,
    BadLevel,
    Environments,
    EnvironmentSpec,
    Options,
    ReferenceScores,
)

if TYPE_CHECKING:
    from impala_mm.environments.gym_vector import GymVector

# What a constructor raises for arguments that it does not accept.
_BAD_ARGUMENTS: tuple[type[Exception], ...] = (
    TypeError,
    ValueError,
    LookupError,
    AssertionError,
    AttributeError,
)
# Whether the first info of a level had a mask, by the level and how it is made.
_infos_with_mask: dict[str, bool] = {}


class MadeLevel(Level):
    """A level whose environments a class or function makes."""

    def __init__(
        self,
        name: str,
        make: Callable[..., Any],
        options: Options,
        creator: Callable[[], Any] | None = None,
        module: str = "",
        reward_threshold: float | None = None,
        scores: ReferenceScores | None = None,
    ):
        """Make environments by `make`, which takes the arguments in --env_kwargs.

        `creator` returns the class or function behind `make`, if it is another one, by which it is
        known whether it takes a render_mode; `module` is where that one is defined. BadLevel is
        raised for wrappers that do not exist.
        """
        self.name, self.reward_threshold, self._scores = name, reward_threshold, scores
        self._make, self._options = make, options
        self._creator = creator or (lambda: make)
        self.module = module or getattr(make, "__module__", "") or ""
        self._kwargs = read_kwargs(options.env_kwargs)
        self._wrappers = [(w, _find_wrapper(w)) for w in read_wrappers(options.env_wrappers)]

    def open(self, renders: bool) -> Any:
        """Return a new environment, one that draws pictures if it can and `renders` is set.

        BadLevel is raised if the flags do not fit it.
        """
        environment = self._call(renders)
        if agents.has_several_agents(environment):  # its wrappers are of its own API
            agents.refuse_options(self.name, self._options)
            return agents.adapt(self.name, self._wrapped(environment))
        return self._wrapped(gym_adapter.adapt(environment))

    def _wrapped(self, environment: Any) -> Any:
        """Return an environment in the wrappers of the flags."""
        try:
            for call, wrapper in self._wrappers:
                environment = self._wrap(call, wrapper, environment)
            if self._options.discretization != "none":
                environment = self._discretise(environment)
        except BaseException:
            with contextlib.suppress(Exception):
                environment.close()
            raise
        return environment

    def conversion(self, has_masks: bool | None = None) -> SpaceConversion:
        """Make one environment, read its spaces and close it; see if its first info has a mask.

        If `has_masks` is given, another process knows whether the level offers masks: nothing is
        reset. BadLevel is raised for a level that cannot be played with these options.
        """
        with self._opened() as environment:
            return self._conversion_of(environment, has_masks)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        """Yield a new environment, and close it."""
        environment = self.open(False)
        try:
            yield environment
        finally:
            with contextlib.suppress(Exception):  # `check` warns of it
                environment.close()

    @property
    def repeats(self) -> int:
        """The number of frames of a step."""
        return self._options.num_action_repeats or 1

    def spec(self) -> EnvironmentSpec:
        """Return the spec; an environment is made and closed for it."""
        return self._spec(self.conversion())

    def make(
        self, num_envs: int, seed: int, renders: bool = False, workers: int = 0
    ) -> Environments:
        """Return copies that step in this process, or in `workers` of their own."""
        conversion = self.conversion()
        spec = self._spec(conversion)
        if workers:
            from impala_mm.environments import worker_vector  # noqa: PLC0415

            sizes = [n * spec.agents for n in split_evenly(num_envs, min(workers, num_envs))]
            options = self._options._asdict()
            return worker_vector.WorkerVector(spec, conversion, options, sizes, seed, renders)
        kind = vector_of(conversion)
        return kind(spec, conversion, self.open, num_envs, seed, renders)

    def action_names(self) -> list[str]:
        """Return the names that the environment has for its actions; empty if it has none."""
        with self._opened() as environment:
            innermost = getattr(environment, "unwrapped", environment)
            meanings = getattr(innermost, "get_action_meanings", None)
            return [str(name) for name in meanings()] if meanings else []

    def numbers_of_choices(self) -> Callable[[Any], np.ndarray]:
        """Return the function by which --discretization turns choices into numbers."""
        with self._opened() as environment:
            return environment.action

    def refuse_others_options(self) -> None:
        """Raise BadLevel for options that only Atari's vector has."""
        options, default = self._options, Options()
        atari = [name for name in Options._fields[len(GENERAL_FLAGS) :] if name != "life_loss_ends"]
        wrong = [name for name in atari if getattr(options, name) != getattr(default, name)]
        if wrong:
            changed = self.module.startswith("ale_py.") and options.is_changed
            off = [f"--{name}={json.dumps(getattr(default, name))}" for name in wrong]
            raise BadLevel(
                f"{self.name}{' with --env_kwargs or --env_wrappers' if changed else ''}"
                f" is not an Atari game, and {' and '.join(wrong)} "
                f"{'works' if len(wrong) == 1 else 'work'} only with Atari games: give "
                f"{' '.join(off)}"
            )

    def _conversion_of(self, environment: Any, has_masks: bool | None) -> SpaceConversion:
        """Return the conversion for an open environment."""
        options = self._options
        sizes = options.width, options.height
        several = isinstance(environment, agents.SeveralAgents)
        one = environment.spaces if several else environment
        conversion = read_spaces(self.name, one, *sizes, options.convert_observations)
        if several:
            conversion = conversion._replace(**environment.columns)
        if has_masks is None and not conversion.masks:
            has_masks = self._first_info_has_mask(environment)
        if has_masks and not conversion.masks:
            in_info = masks.MaskConversion(conversion.actions, "info")
            conversion = conversion._replace(masks=in_info)
        if conversion.masks:
            masks.refuse_unsuitable(self.name, conversion.actions, self.repeats)
        return conversion

    def _spec(self, conversion: SpaceConversion) -> EnvironmentSpec:
        import tensorflow as tf  # noqa: PLC0415

        from impala_mm.environments.choices import ChoiceSpec  # noqa: PLC0415

        notes, images = [], conversion.observation.note
        if images:
            keeps = "(--convert_observations=false leaves its observations as they are)"
            notes += [f"{self.name} is read as images: {images} {keeps}"]
        if conversion.note:
            notes += [f"{self.name} {conversion.note}"]
        return EnvironmentSpec(
            self.name,
            tf.nest.map_structure(
                lambda part: (
                    ChoiceSpec(part.choices)
                    if part.choices
                    else tf.TensorSpec(part.shape, tf.as_dtype(part.dtype))
                ),
                conversion.observation.parts,
            ),
            conversion.actions,
            self.repeats,
            self.reward_threshold,
            scores=self._scores,
            masks=conversion.actions.mask_specs if conversion.masks else (),
            without_goals=conversion.without_goals,
            agents=conversion.agents,
            seats=conversion.seats,
            note="; ".join(notes),
        )

    def _first_info_has_mask(self, environment: Any) -> bool:
        """Return whether the info of the first reset has a mask; reset only once per process.

        A reset that raises is left to the code that plays, which reports it.
        """
        key = f"{self.name} {self.module} {self._make} {self._options}"
        if key not in _infos_with_mask:
            info: Any = None
            with contextlib.suppress(Exception):
                reset = environment.reset(seed=0)
                _, info = gym_adapter.reset_of(reset, environment.observation_space)
            _infos_with_mask[key] = masks.is_in_info(info)
        return _infos_with_mask[key]

    def _call(self, renders: bool, **given: Any) -> Any:
        """Return what the maker returns for the flags' arguments, and for those that are given."""
        if renders and _draws(self._creator()):
            given["render_mode"] = "rgb_array"
        try:
            environment = self._make(**{**self._kwargs, **given})
        except gym_adapter.refusals() as error:
            raise self._refusal(error_message(error)) from error
        except _BAD_ARGUMENTS as error:
            cause = _original(error)
            # Without arguments it is a fault of the environment, unless the call itself fails.
            if not self._kwargs and not (isinstance(cause, TypeError) and _is_of_call(cause)):
                raise
            hint = "" if self._kwargs else ": pass its arguments by --env_kwargs"
            raise self._refusal(f"{describe_error(cause)}{hint}") from error
        self._refuse(environment, self.name)
        return environment

    def _refuse(self, made: Any, maker: str) -> None:
        """Raise BadLevel if an object that `maker` returned is not what this level plays."""
        if isinstance(made, gymnasium.vector.VectorEnv):
            reason = (
                ", a vector of environments: it must return a single one, or have a parameter "
                "num_envs"
            )
        elif not all(callable(getattr(made, name, None)) for name in ("reset", "step")):
            reason = ", which is no environment: it has no methods reset and step"
        else:
            return
        raise BadLevel(f"{maker} returned {_what(made)}{reason}")

    def _refusal(self, reason: str) -> BadLevel:
        flag = f" with --env_kwargs={json_text(self._kwargs)}" if self._kwargs else ""
        return BadLevel(f"{self.name} cannot be made{flag}: {reason}")

    def _wrap(self, call: WrapperCall, wrapper: Callable[..., Any], environment: Any) -> Any:
        """Return an environment in a wrapper; raise BadLevel if the wrapper does not fit it."""
        try:
            wrapped = wrapper(environment, **call.kwargs)
        except BadLevel as error:
            raise BadLevel(f"{self.name}: {error}") from None
        except _BAD_ARGUMENTS + gym_adapter.refusals() as error:
            raise BadLevel(
                f"--env_wrappers: {call.text} cannot wrap {self.name}: {describe_error(error)}"
            ) from error
        self._refuse(wrapped, f"--env_wrappers: {call.text}")
        return wrapped

    def _discretise(self, environment: Any) -> Any:
        """Return an environment with choices in place of a Box's numbers, by --discretization."""
        options = self._options
        try:
            return Discretised(
                environment, options.discretization, options.n_actions_per_dim, options.action_ratio
            )
        except BadLevel as error:
            raise BadLevel(f"{self.name}: {error}") from None


def vector_of(conversion: SpaceConversion) -> "type[GymVector]":
    """Return the class of vectors that step environments of this conversion in one process."""
    from impala_mm.environments import gym_vector, parallel, turns  # noqa: PLC0415

    if conversion.seats > 1:
        return turns.TurnVector
    return parallel.ParallelVector if conversion.is_parallel else gym_vector.GymVector


class Discretised(gymnasium.ActionWrapper):
    """An environment whose action is a choice for each number of its Box."""

    def __init__(self, env: Any, spacing: str, choices: int, ratio: float):
        """Offer this number of choices, spaced `lin` or `log` (see `places`)."""
        super().__init__(env)
        flag, space = f"--discretization={spacing}", env.action_space
        if not isinstance(space, Box):
            raise BadLevel(
                f"{flag} makes choices of a Box's numbers, and the actions are "
                f"{join_lines(space)}: leave it out"
            )
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            raise BadLevel(
                f"{flag} needs bounds, and the actions are {join_lines(space)}: limit them by "
                f"--env_wrappers=MODULE:NAME, an ActionWrapper of yours whose space has bounds"
            )
        low, high = (np.ravel(ends).astype(np.float64) for ends in (space.low, space.high))
        shares = places(spacing, choices, ratio)
        self._numbers = low / 2 + high / 2 + (high / 2 - low / 2) * shares[:, None]  # [choices, D]
        if space.dtype.kind in "iu":
            self._numbers = np.rint(self._numbers)
        self._box = space
        one = low.size == 1
        self.action_space = Discrete(choices) if one else MultiDiscrete([choices] * low.size)

    def action(self, action: Any) -> np.ndarray:
        """Return the numbers of the choices, as the Box has them."""
        numbers = self._numbers[np.ravel(action), np.arange(self._numbers.shape[1])]
        return numbers.astype(self._box.dtype).reshape(self._box.shape)


def places(spacing: str, choices: int, ratio: float) -> np.ndarray:
    """Return where the numbers are, from -1 at the lower bound to 1 at the upper one.

    `lin` spaces them evenly. `log` has the middle, and on both sides of it distances that grow by
    equal factors up to the bound: the largest is `ratio` times the least.
    """
    if spacing == "lin":
        return np.linspace(-1, 1, choices)
    if choices % 2 == 0:
        raise BadLevel(
            f"--n_actions_per_dim={choices}: --discretization=log needs an odd number, the middle "
            f"and as many numbers on either side of it"
        )
    side = np.geomspace(1, 1 / ratio, choices // 2)  # from the bound to the middle
    return np.concatenate([-side, [0], side[::-1]])


def import_module(module: str, name: str, named: str) -> None:
    """Import the module of an environment or a wrapper `name`; raise BadLevel if that fails.

    `named` is the level or the flag that names it.
    """
    try:
        user_modules.import_module(module, after=f":{name}")
    except user_modules.BadModule as error:
        raise BadLevel(f"{named}: {error}") from error.__cause__


def find_callable(module: str, name: str, level_name: str) -> Callable[..., Any] | None:
    """Return a function or class of an imported module; None if it has nothing of this name.

    BadLevel is raised for something else of this name.
    """
    maker = getattr(sys.modules[module], name, None)
    if maker is not None and not callable(maker):
        raise BadLevel(
            f"{level_name}: {name} of {module} is {_what(maker)}, and not a function or class"
        )
    return maker


def _find_wrapper(call: WrapperCall) -> Callable[..., Any]:
    named = f"--env_wrappers={call.module}:{call.name}"
    import_module(call.module, call.name, named)
    wrapper = find_callable(call.module, call.name, named)
    if wrapper is None:
        close = difflib.get_close_matches(call.name, dir(sys.modules[call.module]), n=1, cutoff=0.6)
        hint = f"; did you mean {call.module}:{close[0]}?" if close else ""
        raise BadLevel(f"{named}: {call.module} has no function or class {call.name}{hint}")
    return wrapper


def _draws(creator: Callable[..., Any]) -> bool:
    """Return whether a class or function makes environments that draw pictures if it is told so.

    A class that declares its render modes may refuse others; a function declares none.
    """
    parameters = gym_adapter.parameters_of(creator)
    # The metadata of a class of wrappers is a property, known only once there is an environment.
    declared = getattr(creator, "metadata", None)
    modes = declared.get("render_modes") if isinstance(declared, dict) else None
    if isinstance(creator, type) and modes:
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        return "rgb_array" in modes and ("render_mode" in parameters or takes_any)
    return "render_mode" in parameters


def _original(error: Exception) -> BaseException:
    """Return the environment's own error: gymnasium raises one of the same type from it."""
    cause = error.__cause__
    return cause if type(cause) is type(error) and str(cause) in str(error) else error


def _is_of_call(error: BaseException) -> bool:
    """Return whether a call had other arguments than its function takes: none of its code ran."""
    frames = traceback.extract_tb(error.__traceback__)
    return "argument" in str(error) and not (frames and is_users_file(frames[-1].filename))


def _what(thing: Any) -> str:
    """Return what an object is, in a few words."""
    if thing is None:
        return "None"
    return f"{join_lines(repr(thing))[:60]} ({type(thing).__name__})"
