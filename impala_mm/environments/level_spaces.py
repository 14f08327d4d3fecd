"""The conversion of a level's actions, observations and masks, read from one of its environments.

`make` and the worker processes call it. It does not import TensorFlow.
"""

import contextlib
from typing import Any

from impala_mm.environments import masks, spaces
from impala_mm.environments.gym_adapter import reset_of
from impala_mm.environments.levels import Level
from impala_mm.environments.types import Options

# Whether the first info of a level had a mask, by the level and how it is made.
_infos_with_mask: dict[str, bool] = {}


def read_conversion(
    level: Level, options: Options, has_masks: bool | None = None
) -> spaces.SpaceConversion:
    """Make one environment, read its spaces and close it; see whether its first info has a mask.

    If `has_masks` is given, another process knows whether the level offers masks: nothing is reset.
    BadLevel is raised for a level that cannot be played with these options.
    """
    environment = level.open(False)
    try:
        chosen = options.width, options.height, options.convert_observations
        conversion = spaces.read_spaces(level.name, environment, *chosen)
        if has_masks is None and not conversion.masks:
            has_masks = _first_info_has_mask(level, options, environment)
        if has_masks and not conversion.masks:
            found = masks.MaskConversion(conversion.actions, "info")
            conversion = conversion._replace(masks=found)
    finally:
        with contextlib.suppress(Exception):  # `check` warns of it
            environment.close()
    if conversion.masks:
        repeats = options.num_action_repeats or 1
        masks.refuse_unsuitable(level.name, conversion.actions, repeats)
    return conversion


def _first_info_has_mask(level: Level, options: Options, environment: Any) -> bool:
    """Return whether the info of a level's first reset has a mask; reset only once per process.

    A reset that raises is left to the code that plays, which reports it.
    """
    key = f"{level.name} {level.registered} {options.env_kwargs} {options.wrappers}"
    if key not in _infos_with_mask:
        info: Any = None
        with contextlib.suppress(Exception):
            _, info = reset_of(environment.reset(seed=0), environment.observation_space)
        _infos_with_mask[key] = masks.is_in_info(info)
    return _infos_with_mask[key]
