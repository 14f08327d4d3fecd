"""Names for the actions of a level: videos show them, and exported models list them."""

import contextlib
from typing import Any

from impala_mm.environments import levels
from impala_mm.environments.actions import ActionSpec
from impala_mm.environments.types import Options


def action_names(level_name: str, actions: ActionSpec, **options: Any) -> list[str]:
    """Return the names of Discrete actions in order, or their numbers if they have no names.

    For actions that are not a single choice the list is empty.
    """
    if actions.discrete is None:
        return []
    num_actions = actions.discrete
    chosen = Options(**options)
    level = levels.find_level(level_name, chosen.env_kwargs, chosen.wrappers)
    game = level.game(chosen)
    if game:
        return [action.name for action in game.actions]
    environment = level.open(False)
    try:
        bare = getattr(environment, "unwrapped", environment)
        known = getattr(bare, "get_action_meanings", None)
        found = [str(name) for name in known()] if known else []
    finally:
        with contextlib.suppress(Exception):  # `check` warns of it
            environment.close()
    return found if len(found) == num_actions else [str(action) for action in range(num_actions)]
