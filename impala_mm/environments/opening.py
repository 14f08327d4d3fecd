"""Opening one environment of a level: its maker is called with --env_kwargs, and wrapped.

`levels.find_level` makes an `Opener` for the level that it found.
"""

import contextlib
import difflib
import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from impala_mm.config import user_modules
from impala_mm.config.environment_flags import WrapperCall, json_text, read_kwargs, read_wrappers
from impala_mm.config.messages import describe_error, error_message, is_users_file, join_lines
from impala_mm.environments import gym_adapter
from impala_mm.environments.types import BadLevel

# What a constructor raises for arguments that it does not accept.
_BAD_ARGUMENTS: tuple[type[Exception], ...] = (
    TypeError,
    ValueError,
    LookupError,
    AssertionError,
    AttributeError,
)


class Opener:
    """A function that makes one environment of a level; given True, one that draws pictures."""

    def __init__(
        self,
        level_name: str,
        make: Callable[..., Any],
        draws: Callable[[], bool],
        env_kwargs: str,
        env_wrappers: str,
    ):
        """Make environments by `make`, which takes the arguments in `env_kwargs`.

        If `draws` returns true, `make` takes a render_mode, too. BadLevel is raised for wrappers
        that do not exist.
        """
        self._level_name, self._make, self._draws = level_name, make, draws
        self._kwargs = read_kwargs(env_kwargs)
        self._wrappers = [(call, _find_wrapper(call)) for call in read_wrappers(env_wrappers)]

    def __call__(self, renders: bool) -> Any:
        """Return a new environment; raise BadLevel if the flags do not fit it."""
        mode = {"render_mode": "rgb_array"} if renders and self._draws() else {}
        environment = self._call({**self._kwargs, **mode})
        try:
            for call, wrapper in self._wrappers:
                environment = self._wrap(call, wrapper, environment)
        except BaseException:
            with contextlib.suppress(Exception):
                environment.close()
            raise
        return environment

    def _call(self, kwargs: dict[str, Any]) -> Any:
        try:
            environment = self._make(**kwargs)
        except gym_adapter.refusals() as error:
            raise self._refusal(error_message(error)) from error
        except _BAD_ARGUMENTS as error:
            cause = _original(error)
            # Without arguments it is a fault of the environment, unless the call itself fails.
            if not self._kwargs and not (isinstance(cause, TypeError) and _is_of_call(cause)):
                raise
            hint = "" if self._kwargs else ": pass its arguments by --env_kwargs"
            raise self._refusal(f"{describe_error(cause)}{hint}") from error
        if why := _why_no_environment(environment):
            raise BadLevel(f"{self._level_name} returned {why}")
        return gym_adapter.adapt(environment)

    def _refusal(self, why: str) -> BadLevel:
        if not self._kwargs:
            return BadLevel(f"{self._level_name} cannot be made: {why}")
        given = json_text(self._kwargs)
        return BadLevel(f"{self._level_name} cannot be made with --env_kwargs={given}: {why}")

    def _wrap(self, call: WrapperCall, wrapper: Callable[..., Any], environment: Any) -> Any:
        """Return an environment in a wrapper; raise BadLevel if the wrapper does not fit it."""
        try:
            wrapped = wrapper(environment, **call.kwargs)
        except BadLevel as error:
            raise BadLevel(f"{self._level_name}: {error}") from None
        except _BAD_ARGUMENTS + gym_adapter.refusals() as error:
            raise BadLevel(
                f"--env_wrappers: {call.text} cannot wrap {self._level_name}: "
                f"{describe_error(error)}"
            ) from error
        if why := _why_no_environment(wrapped):
            raise BadLevel(f"--env_wrappers: {call.text} returned {why}")
        return wrapped


def takes_render_mode(maker: Callable[..., Any], among_others: bool = False) -> bool:
    """Return whether a function or class that makes environments has an argument render_mode.

    `among_others`: it may be one of any others that it takes.
    """
    try:
        parameters = inspect.signature(maker).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    return "render_mode" in parameters or (among_others and takes_any)


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
    found = getattr(sys.modules[module], name, None)
    if found is not None and not callable(found):
        raise BadLevel(
            f"{level_name}: {name} of {module} is {_what(found)}, and not a function or class"
        )
    return found


def _find_wrapper(call: WrapperCall) -> Callable[..., Any]:
    named = f"{call.module}:{call.name}"
    import_module(call.module, call.name, f"--env_wrappers={named}")
    wrapper = find_callable(call.module, call.name, f"--env_wrappers={named}")
    if wrapper is None:
        close = difflib.get_close_matches(call.name, dir(sys.modules[call.module]), n=1, cutoff=0.6)
        hint = f"; did you mean {call.module}:{close[0]}?" if close else ""
        raise BadLevel(
            f"--env_wrappers={named}: {call.module} has no function or class {call.name}{hint}"
        )
    return wrapper


def _original(error: Exception) -> BaseException:
    """Return the environment's own error: gymnasium raises one of the same type from it."""
    cause = error.__cause__
    return cause if type(cause) is type(error) and str(cause) in str(error) else error


def _is_of_call(error: BaseException) -> bool:
    """Return whether a call had other arguments than its function takes: none of its code ran."""
    frames: Sequence[traceback.FrameSummary] = traceback.extract_tb(error.__traceback__)
    return "argument" in str(error) and not (frames and is_users_file(frames[-1].filename))


def _why_no_environment(made: Any) -> str:
    """Return what an object is that is no environment; an empty text if it is one."""
    if isinstance(made, gymnasium.vector.VectorEnv):
        return f"{_what(made)}, a vector of environments: it must return a single one"
    if callable(getattr(made, "action_space", None)):  # by agent, as PettingZoo has it
        return (
            f"{_what(made)}, an environment of several agents, and a policy here plays for one: "
            f"return a gymnasium.Env around it that lets a rule or a policy of yours act for the "
            f"others, or whose Dict actions and observations have a part for each agent"
        )
    if all(callable(getattr(made, name, None)) for name in ("reset", "step")):
        return ""
    return f"{_what(made)}, which is no environment: it has no methods reset and step"


def _what(found: Any) -> str:
    """Return what an object is, in a few words."""
    if found is None:
        return "None"
    return f"{join_lines(repr(found))[:60]} ({type(found).__name__})"
