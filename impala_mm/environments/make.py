"""Making environments by the name of their level, and reading a level's spec."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from impala_mm.config.auto import split_evenly
from impala_mm.environments.choices import ChoiceSpec
from impala_mm.environments.types import (
    GENERAL_FLAGS,
    BadLevel,
    Environments,
    EnvironmentSpec,
    Options,
)

if TYPE_CHECKING:
    from impala_mm.environments.atari.games import Game
    from impala_mm.environments.levels import Level
    from impala_mm.environments.observations import ObservationConversion, PartConversion
    from impala_mm.environments.spaces import SpaceConversion


def make_environments(
    level_name: str,
    num_envs: int,
    seed: int,
    renders: bool = False,
    workers: int = 0,
    **options: Any,
) -> Environments:
    """Make `num_envs` copies of a level; number i is seeded with `seed` + i.

    They step in `workers` processes, or in this one if that is 0; games of Atari have threads of
    their own. `options` are fields of `Options`. With `renders`, environment 0 has a `picture`,
    which costs time and does not change the game.

    A level is the id of a gymnasium or classic gym environment; `gym:ID` for classic gym's where
    both libraries have the id; `my_package.module:ID` where importing the module registers the id;
    `my_package.module:make_env`, a function or class that makes one; or `catch`, `memory` or
    `tmaze`, which are our own. BadLevel is raised if it cannot be played.
    """
    level, game, chosen = _find_level_and_game(level_name, options)
    if game:
        from impala_mm.environments.atari import colour_screen, games, vector  # noqa: PLC0415

        opens = colour_screen.ColourScreenVector if renders else vector.open_vector
        return vector.AtariVector(games.game_spec(game), game, num_envs, seed, opens)
    from impala_mm.environments import gym_vector  # noqa: PLC0415

    conversion, spec = _read_spaces(level, chosen)
    if workers:
        from impala_mm.environments import worker_vector  # noqa: PLC0415

        sizes = split_evenly(num_envs, min(workers, num_envs))
        return worker_vector.WorkerVector(spec, conversion, chosen._asdict(), sizes, seed, renders)
    return gym_vector.GymVector(spec, conversion, level.open, num_envs, seed, renders)


def level_spec(level_name: str, **options: Any) -> EnvironmentSpec:
    """Return the spec of a level's environments; unless it is Atari's, one is made and closed."""
    level, game, chosen = _find_level_and_game(level_name, options)
    if game:
        from impala_mm.environments.atari import games  # noqa: PLC0415

        return games.game_spec(game)
    return _read_spaces(level, chosen)[1]


def observation_conversion(level_name: str, **options: Any) -> "ObservationConversion":
    """Return the conversion of what a level's environment returns; not for Atari's games."""
    level, _, chosen = _find_level_and_game(level_name, options)
    return _read_spaces(level, chosen)[0].observation


def numbers_of_choices(level_name: str, **options: Any) -> Callable[[Any], np.ndarray]:
    """Return the function by which --discretization turns a level's choices into numbers."""
    level = _find_level_and_game(level_name, options)[0]
    environment = level.open(False)
    environment.close()
    return environment.action


def _find_level_and_game(
    level_name: str, options: dict[str, Any]
) -> tuple["Level", "Game | None", Options]:
    """Return the level, its Atari game (or None) and the options; refuse Atari's for others."""
    # Imported only when called: gymnasium takes time to load.
    from impala_mm.environments import levels  # noqa: PLC0415

    chosen = Options(**options)
    level = levels.find_level(level_name, chosen.env_kwargs, chosen.wrappers)
    game = level.game(chosen)
    if not game:
        general = Options(
            **{name: getattr(chosen, name) for name in GENERAL_FLAGS},
            life_loss_ends=chosen.life_loss_ends,
        )
        wrong = [name for name in chosen._fields if getattr(chosen, name) != getattr(general, name)]
        if wrong:
            changed = level.registered and (chosen.env_kwargs or chosen.wrappers)
            off = [f"--{name}={json.dumps(getattr(general, name))}" for name in wrong]
            raise BadLevel(
                f"{level_name}{' with --env_kwargs or --env_wrappers' if changed else ''}"
                f" is not an Atari game, and {' and '.join(wrong)} "
                f"{'works' if len(wrong) == 1 else 'work'} only with Atari games: give "
                f"{' '.join(off)}"
            )
    return level, game, chosen


def _read_spaces(level: "Level", options: Options) -> tuple["SpaceConversion", EnvironmentSpec]:
    """Return the conversion of a level's observations and actions, and its spec."""
    from impala_mm.environments import level_spaces  # noqa: PLC0415

    conversion = level_spaces.read_conversion(level, options)
    return conversion, EnvironmentSpec(
        level.name,
        tf.nest.map_structure(_spec, conversion.observation.parts),
        conversion.actions,
        options.num_action_repeats or 1,
        level.reward_threshold,
        masks=conversion.actions.mask_specs if conversion.masks else (),
        without_goals=conversion.without_goals,
        note=_note(level.name, conversion.observation.note),
    )


def _spec(part: "PartConversion") -> tf.TensorSpec:
    if part.choices:
        return ChoiceSpec(part.choices)
    return tf.TensorSpec(part.shape, tf.as_dtype(part.dtype))


def _note(level_name: str, recognised: str) -> str:
    """Return a sentence about what was recognised as images; empty if nothing was."""
    if not recognised:
        return ""
    return (
        f"{level_name} is read as images: {recognised} (--convert_observations=false leaves its "
        f"observations as they are)"
    )
