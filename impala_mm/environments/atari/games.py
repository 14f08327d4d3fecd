"""Settings of an Atari game from its id and the options: ROM, repeats, sticky actions and limits.

The ids are those that ale_py registers with gymnasium. What distinguishes them (ROM, frame skip,
sticky actions) is read from that registry. `vector` plays the game.
"""

import functools
from typing import Any, NamedTuple

import ale_py
from ale_py import roms

from impala_mm.config.environment_flags import read_kwargs
from impala_mm.config.messages import error_message
from impala_mm.environments.types import BadLevel, Options

_SIZE = 84  # height and width in pixels, as in DeepMind's agents
_NO_LIMIT = 2**30  # frames of a game
_REPEATS = 4  # frames per step for ids whose emulator does not repeat actions (NoFrameskip)
# The settings of an id that this module can read. An id with other settings (RAM observations,
# another mode or difficulty) is played through gymnasium.
_KNOWN = {
    "game",
    "repeat_action_probability",
    "full_action_space",
    "frameskip",
    "max_num_frames_per_episode",
    "obs_type",
}
# Those of --env_kwargs, with the types that they must have; with others, gymnasium plays the game.
_ARGUMENTS: dict[str, Any] = {
    "repeat_action_probability": (int, float),
    "full_action_space": bool,
    "frameskip": int,
    "max_num_frames_per_episode": int,
}


class Game(NamedTuple):
    """The settings of one game. Frames are those of the emulator, 60 a second."""

    level_name: str
    rom: str  # ale_py's name of the game
    actions: tuple[ale_py.Action, ...]  # the emulator's actions for our actions 0, 1, ...
    repeats: int  # frames per step
    sticky_actions: float  # probability, at each frame, that the previous action is pressed instead
    max_frames: int  # frames before a game is truncated, without no-ops
    no_ops: int  # a game begins with at most this number of frames without an action
    full_action_space: bool
    height: int
    width: int
    life_loss_ends: bool  # a lost life ends a training episode
    fire_after_life_loss: bool
    no_reward_steps: int  # steps without a reward before a game is truncated; 0: never


def read_game(level_name: str, registered: Any, options: Options) -> Game | None:
    """Return the game of an id in gymnasium's registry; None if the C++ vector cannot play it."""
    given = read_kwargs(options.env_kwargs)
    kwargs = registered.kwargs | given
    if (
        options.env_wrappers
        or options.discretization != "none"
        or not all(isinstance(value, _ARGUMENTS.get(key, ())) for key, value in given.items())
        or not kwargs.keys() <= _KNOWN
        or kwargs.get("obs_type", "rgb") == "ram"
        or registered.max_episode_steps
    ):
        return None
    repeats = kwargs.get("frameskip", 1)
    if not isinstance(repeats, int):
        _refuse_random(level_name, registered, repeats)
    if repeats < 1:
        raise BadLevel(f"frameskip is {repeats}, and must be at least 1")
    if repeats == 1 and "frameskip" not in given:  # an id of single frames
        repeats = _REPEATS
    limit = kwargs.get("max_num_frames_per_episode", 108_000)
    full = options.full_action_space or kwargs.get("full_action_space", False)
    sticky = options.sticky_actions
    if not sticky <= 1:  # NaN, too
        raise BadLevel(f"sticky_actions is a probability, and {sticky} is not between 0 and 1")
    rom = kwargs["game"]
    return Game(
        level_name=level_name,
        rom=rom,
        actions=_actions(level_name, rom, full),
        repeats=options.num_action_repeats or repeats,
        sticky_actions=sticky if sticky >= 0 else kwargs.get("repeat_action_probability", 0.0),
        max_frames=options.max_frames or (limit if limit > 0 else _NO_LIMIT),  # as for ALE
        no_ops=options.no_ops,
        full_action_space=full,
        height=options.height or _SIZE,
        width=options.width or _SIZE,
        life_loss_ends=options.life_loss_ends,
        fire_after_life_loss=options.fire_after_life_loss,
        no_reward_steps=options.no_reward_steps,
    )


def _refuse_random(level_name: str, registered: Any, repeats: Any) -> None:
    """Raise BadLevel for an id that repeats actions at random; name the similar ids."""
    prefix = level_name.removesuffix(registered.id)
    name = prefix + registered.name
    raise BadLevel(
        f"{level_name} repeats each action {repeats[0]} to {repeats[1] - 1} times, at random, and "
        f"only a fixed number is supported: did you mean {name}NoFrameskip-v{registered.version} "
        f"or {prefix}ALE/{registered.name}-v5?"
    )


@functools.cache  # loading a ROM takes a tenth of a second
def _actions(level_name: str, rom: str, full: bool) -> tuple[ale_py.Action, ...]:
    """Return the actions that have an effect in the game, or all 18 if `full`."""
    try:
        path = roms.get_rom_path(rom)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BadLevel(
            f"{level_name} needs the ROM {rom}.bin, which was not found ({error}): reinstall "
            "ale-py, or set ALE_ROMS_DIR to a folder that has it"
        ) from error
    except OSError as error:
        raise BadLevel(f"{level_name}: {error_message(error)}") from error
    if path is None:
        raise BadLevel(f"{level_name}: ale-py knows no ROM {rom}")
    # Without this it prints a greeting at every start.
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    emulator = ale_py.ALEInterface()
    emulator.loadROM(path)
    if not full:
        return tuple(emulator.getMinimalActionSet())
    # The network has 18 actions even where the emulator leaves some out, such as FIRE in Skiing;
    # these then press the same without FIRE.
    legal = {action.name: action for action in emulator.getLegalActionSet()}
    return tuple(
        legal[name if name in legal else name.removesuffix("FIRE") or "NOOP"]
        for name in ale_py.Action.__members__
    )
