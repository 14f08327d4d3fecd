"""The texts of --env_kwargs and --env_wrappers: what they mean, and the one form that each has.

`settings` names these readers, so that both programs refuse a mistake when they parse their flags.
Flags that mean the same have the same text: an actor and its learner, and a run and its resumption,
are compared by it.
"""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

# The end of the names of files with environments or wrappers that were defined in Python.
FILE_SUFFIX = ".environment"
# Opponents of --opponents by name; others are a policy's folder or a function.
RANDOM, SELF, PAST = "random", "self", "past"
OPPONENTS = f"{SELF}:0.5,{PAST}:0.5"  # the default
# The number of an opponent: of a past policy its version, of opponent k of the flag -2 - k, or:
NO_OPPONENT = -1
# With Atari: said by the frontend, and by the learner.
EVERY_FRAME = (
    "--num_action_repeats=1 makes every emulator frame a step; impala_horovod_gym ignored the flag "
    "and repeated each action 4 times: leave it out for that"
)
_ATARI = re.compile(r"\bALE/|(NoFrameskip|Deterministic)-v\d|^atari57$")  # in a level's name
_PATH = re.compile(rf"[^,\"]+{re.escape(FILE_SUFFIX)}")
_WRAPPER = re.compile(r"\s*([^\s,:{]+):([^\s,:{]+)\s*")


class WrapperCall(NamedTuple):
    """A wrapper of --env_wrappers and its arguments."""

    module: str
    name: str  # of the class or function in the module
    kwargs: dict[str, Any]

    @property
    def text(self) -> str:
        """The wrapper as the flag names it."""
        return f"{self.module}:{self.name}{json_text(self.kwargs)}"


def is_atari(level_name: str) -> bool:
    """Return whether an id is that of a game of Atari, by its spelling."""
    return bool(_ATARI.search(level_name))


def read_kwargs(text: str) -> dict[str, Any]:
    """Return the arguments in a JSON object; an empty text has none. Raises ValueError."""
    if not text.strip():
        return {}
    try:
        return _read_object(text)[0]
    except ValueError as error:
        raise ValueError(f'{error}; it must be a JSON object such as {{"size": 8}}') from None


def json_text(kwargs: Mapping[str, Any]) -> str:
    """Return arguments as a JSON object without line breaks; an empty text if there are none.

    They are in the order of their names. Objects within an argument keep their order, since an
    environment may read it.
    """
    ordered = dict(sorted(kwargs.items()))
    return json.dumps(ordered, ensure_ascii=False, allow_nan=False) if kwargs else ""


def kwargs_text(text: str) -> str:
    """Return --env_kwargs in the form in which it is recorded and compared. Raises ValueError."""
    return json_text(read_kwargs(text))


def read_wrappers(text: str) -> list[WrapperCall]:
    """Return the wrappers of a list separated by commas, the innermost first. Raises ValueError."""
    calls = []
    rest = text.strip()
    while rest:
        named = _WRAPPER.match(rest)
        if not named:
            name = rest.split(",")[0]
            raise ValueError(
                f"{name!r} is not a wrapper: write my_package:MyWrapper, with its arguments as a "
                'JSON object if it needs any: gymnasium.wrappers:TimeLimit{"max_episode_steps": 9}'
            )
        kwargs: dict[str, Any] = {}
        rest = rest[named.end() :]
        if rest.startswith("{"):
            try:
                kwargs, end = _read_object(rest, alone=False)
            except ValueError as error:
                raise ValueError(f"the arguments of {named[1]}:{named[2]}: {error}") from None
            rest = rest[end:].lstrip()
        calls.append(WrapperCall(named[1], named[2], kwargs))
        if rest and not rest.startswith(","):
            raise ValueError(f"a comma is missing before {rest!r}")
        if rest == ",":
            raise ValueError("a wrapper is missing after the last comma")
        rest = rest[1:].lstrip()
    return calls


def wrappers_text(text: str) -> str:
    """Return --env_wrappers in the form in which it is recorded and compared. Raises ValueError."""
    return ",".join(call.text for call in read_wrappers(text))


def read_opponents(text: str) -> dict[str, float]:
    """Return the weights of --opponents by name, in order. Raises ValueError."""
    weights: dict[str, float] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, weight = part.rpartition(":")
        try:
            share = float(weight)
        except ValueError:  # the name alone, which may be that of a function
            name, share = part, 1.0
        if not name or not 0 < share < math.inf:
            raise ValueError(f"{part!r} must be a name and a weight above 0, such as self:0.5")
        if name in weights:
            raise ValueError(f"it names {name} twice")
        weights[name] = share
    if not weights:
        raise ValueError(f"it must name an opponent, such as {OPPONENTS} or {RANDOM}")
    return weights


def opponents_text(text: str) -> str:
    """Return --opponents in the form in which it is recorded and compared. Raises ValueError."""
    return ",".join(f"{name}:{weight:g}" for name, weight in read_opponents(text).items())


def _read_object(text: str, alone: bool = True) -> tuple[dict[str, Any], int]:
    """Return the JSON object at the beginning of a text, and where it ends; raise ValueError.

    With `alone`, nothing may follow it.
    """
    decoder = json.JSONDecoder(object_pairs_hook=_without_duplicates, parse_constant=_refuse_number)
    start = len(text) - len(text.lstrip())
    try:
        arguments, end = decoder.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError("it is not JSON: it is nested too deeply") from None
    if not isinstance(arguments, dict):
        raise ValueError(f"it is not an object, but {json.dumps(arguments)}")
    if alone and (after := text[end:].strip()):
        raise ValueError(f"it is not JSON: {after!r} follows the object")
    return arguments, end


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    arguments = dict(pairs)
    for key in arguments:
        if [name for name, _ in pairs].count(key) > 1:
            raise ValueError(f"it has {key!r} twice")
    return arguments


def _refuse_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def files_of_checkpoint(path: Path) -> list[Path]:
    """Return the files beside a checkpoint's own, or in the folder of its run."""
    folder = path.resolve()
    if folder.parent.name == "checkpoints":
        folder = folder.parents[1]
    return sorted(folder.glob(f"*{FILE_SUFFIX}"))


def relocated(settings: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return a checkpoint's settings in which the files are its own.

    At the recorded path may be those of another run, if this one was moved.
    """
    here = {file.name: str(file) for file in files_of_checkpoint(path)}

    def moved(match: re.Match) -> str:
        return here.get(Path(match[0]).name, match[0])

    named = {
        name: _PATH.sub(moved, settings[name])
        for name in ("level_name", "env_wrappers")
        if isinstance(settings.get(name), str)
    }
    return settings | named


def without_folders(text: str) -> str:
    """Return a text in which such files are named without their folders, as moving leaves them."""
    return _PATH.sub(lambda match: Path(match[0]).name, text)
