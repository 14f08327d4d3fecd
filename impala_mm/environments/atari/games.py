"""What an Atari id and the options say of a game: its ROM, repeats, stickiness and limits.

Ids are those that ale_py registers with gymnasium; what tells one from the other (sticky actions,
frame skip, ROM) is read from there. `levels` found the id; `vector` plays the game.
"""

import functools
from typing import Any, NamedTuple

import ale_py
import tensorflow as tf
from ale_py import roms

from impala_mm.environments.atari import scores
from impala_mm.environments.types import BadLevel, EnvironmentSpec, Options

_SIZE = 84  # pixels down and across, as DeepMind's agents see them
_REPEATS = 4  # of ids whose emulator repeats nothing (NoFrameskip): their preprocessing does
_STACK = 4
# What we know how to read. An id that asks for more (RAM observations, another mode or difficulty)
# is gymnasium's to play.
_KNOWN = {
    "game",
    "repeat_action_probability",
    "full_action_space",
    "frameskip",
    "max_num_frames_per_episode",
    "obs_type",
}


class Game(NamedTuple):
    """How one game is played. A frame is the emulator's, 60 a second."""

    level_name: str
    rom: str  # ale_py's name of it
    actions: tuple[ale_py.Action, ...]  # what our actions 0, 1, ... press
    repeats: int  # frames per step
    sticky_actions: float  # probability, at each frame, that the action before is pressed instead
    max_frames: int  # after which a game is cut, no-ops not counted
    no_ops: int  # at most so many frames of doing nothing begin a game
    full_action_space: bool
    height: int
    width: int
    life_loss_ends: bool  # a lost life ends a training episode
    fire_after_life_loss: bool
    no_reward_steps: int  # without reward, after which a game is cut; 0: never


def read_game(level_name: str, registered: Any, options: Options) -> Game | None:
    """The game of an id in gymnasium's registry; None where it is not for the C++ vector."""
    kwargs = registered.kwargs
    if (
        registered.entry_point != "ale_py.env:AtariEnv"
        or not kwargs.keys() <= _KNOWN
        or kwargs.get("obs_type", "rgb") == "ram"
        or registered.max_episode_steps
    ):
        return None
    repeats = kwargs.get("frameskip", 1)
    if not isinstance(repeats, int):
        _refuse_random(level_name, registered, repeats)
    full = options.full_action_space or kwargs.get("full_action_space", False)
    sticky = options.sticky_actions
    if not sticky <= 1:  # NaN, too
        raise BadLevel(f"sticky_actions is a probability, and {sticky} is none")
    rom = kwargs["game"]
    return Game(
        level_name=level_name,
        rom=rom,
        actions=_actions(level_name, rom, full),
        repeats=options.num_action_repeats or (repeats if repeats > 1 else _REPEATS),
        sticky_actions=sticky if sticky >= 0 else kwargs.get("repeat_action_probability", 0.0),
        max_frames=options.max_frames or kwargs.get("max_num_frames_per_episode", 108_000),
        no_ops=options.no_ops,
        full_action_space=full,
        height=options.height or _SIZE,
        width=options.width or _SIZE,
        life_loss_ends=options.life_loss_ends,
        fire_after_life_loss=options.fire_after_life_loss,
        no_reward_steps=options.no_reward_steps,
    )


def game_spec(game: Game) -> EnvironmentSpec:
    """What networks and learners need to know of it."""
    note = ""
    if game.repeats == 1:
        note = (
            "num_action_repeats=1 is obeyed, every emulator frame is a step; the predecessor "
            "ignored it with Atari and repeated each action 4 times (leave it 0 for that)"
        )
    return EnvironmentSpec(
        game.level_name,
        tf.TensorSpec([game.height, game.width, 1], tf.uint8),
        len(game.actions),
        action_repeats=game.repeats,
        reward_threshold=None,
        frame_stack=_STACK,
        note=note,
        scores=scores.reference_scores(game.rom),
        emulator=f"ale-py {ale_py.__version__}",
    )


def _refuse_random(level_name: str, registered: Any, repeats: Any) -> None:
    """Says which ids are near one that repeats actions at random."""
    prefix = level_name.removesuffix(registered.id)
    name = prefix + registered.name
    raise BadLevel(
        f"{level_name} repeats each action {repeats[0]} to {repeats[1] - 1} times, at random, and "
        f"only a fixed number is played: did you mean {name}NoFrameskip-v{registered.version} "
        f"or {prefix}ALE/{registered.name}-v5?"
    )


@functools.cache  # loading a ROM takes a tenth of a second
def _actions(level_name: str, rom: str, full: bool) -> tuple[ale_py.Action, ...]:
    """The game's actions: those that do something in it, or all 18."""
    try:
        path = roms.get_rom_path(rom)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BadLevel(
            f"{level_name} needs the ROM {rom}.bin, and there is none ({error}): reinstall ale-py, "
            "or let ALE_ROMS_DIR name a folder that has it"
        ) from error
    except OSError as error:
        raise BadLevel(f"{level_name}: {' '.join(str(error).split())}") from error
    if path is None:
        raise BadLevel(f"{level_name}: ale-py knows no ROM {rom}")
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # it greets at every start
    emulator = ale_py.ALEInterface()
    emulator.loadROM(path)
    if not full:
        return tuple(emulator.getMinimalActionSet())
    # Where the emulator leaves some out, Skiing's FIRE, they are there for the network's sake.
    legal = {action.name: action for action in emulator.getLegalActionSet()}
    return tuple(
        legal[name if name in legal else name.removesuffix("FIRE") or "NOOP"]
        for name in ale_py.Action.__members__
    )
