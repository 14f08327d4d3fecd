"""Refusal of environments that offer action masks, which are not supported yet.

Without the mask a policy would take illegal actions, and the user would never notice.
"""

from collections.abc import Mapping
from typing import Any

from impala_mm.environments.types import BadLevel

_KEY = "action_mask"  # of an info and of a Dict observation, as gymnasium and PettingZoo name it
_METHOD = "action_masks"  # as Stable-Baselines3 Contrib names it


def refuse_declared_mask(level_name: str, environment: Any) -> None:
    """Raise BadLevel if an environment offers masks by its observation space or by a method."""
    parts = getattr(getattr(environment, "observation_space", None), "spaces", None)
    if isinstance(parts, Mapping) and _KEY in parts:
        _refuse(level_name, f'as the part "{_KEY}" of its observations', "leaves that part out")
    find = getattr(environment, "get_wrapper_attr", None)
    try:
        method = find(_METHOD) if find else getattr(environment, _METHOD, None)
    except AttributeError:
        return
    if callable(method):
        _refuse(level_name, f"by a method {_METHOD}()", f"has the attribute {_METHOD} = None")


def refuse_mask_in_info(level_name: str, info: Any) -> None:
    """Raise BadLevel if the info of a reset or a step has a mask."""
    if isinstance(info, Mapping) and _KEY in info:
        _refuse(level_name, f'in info["{_KEY}"]', f'removes it (info.pop("{_KEY}"))')


def _refuse(level_name: str, where: str, how: str) -> None:
    raise BadLevel(
        f"{level_name} offers a mask of its legal actions {where}, and action masks are not "
        f"supported yet: illegal actions would be taken. Wrap the environment in a "
        f"gymnasium.Wrapper that replaces illegal actions by legal ones and {how}"
    )
