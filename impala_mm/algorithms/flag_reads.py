"""The flags that a user's algorithm reads; a learner reports those given that it does not.

`make` gives such an algorithm a config that records what is read of it. The settings of a
built-in algorithm say in `ignored` what it does not read.
"""

import copy
import dataclasses
from collections.abc import Set
from typing import Any

from impala_mm.config import flags
from impala_mm.config.algorithm_settings import BUILT_IN
from impala_mm.config.settings import Config

# Flags with these headings are meant for algorithms, unless the run reads them.
_GROUPS = {"Algorithm", "Network", "Optimizer"}


def recording(config: Config, names: set[str]) -> Config:
    """Return a copy of a config that adds the name of each flag that is read of it to `names`."""
    kind = type(config)
    known = {f.name for f in dataclasses.fields(kind)}

    class Recording(kind):  # type: ignore[misc, valid-type]
        def __getattribute__(self, name: str) -> Any:
            if name in known:
                names.add(name)
            elif name == "__dict__":
                names.update(known)
            return super().__getattribute__(name)

        def __repr__(self) -> str:  # Sonnet calls it for each argument of a module
            return repr(config)

        def __reduce__(self) -> tuple[Any, ...]:
            return copy.copy, (config,)

    Recording.__name__ = Recording.__qualname__ = kind.__name__
    made = copy.copy(config)
    object.__setattr__(made, "__class__", Recording)
    return made


def is_for_algorithms(known: flags.FlagInfo) -> bool:
    """Return whether a shared flag is meant for algorithms."""
    return known.group in _GROUPS and not known.by_run


def note_unread(config: Config, names: Set[str]) -> str:
    """Return a note about flags of `config` that are not among `names`; empty if there is none.

    Only shared flags that are meant for algorithms and differ from their defaults count; an
    algorithm's own flags may be read by its actors alone.
    """
    if config.algorithm in BUILT_IN:
        return ""
    unread = [
        f.name
        for f in dataclasses.fields(Config)
        if is_for_algorithms(flags.info(f))
        and f.name not in names
        and getattr(config, f.name) != getattr(type(config), f.name)
    ]
    if not unread:
        return ""
    given = ", ".join(flags.arguments(config, unread))
    return f"note: --algorithm={config.algorithm} has not read {given}: this has no effect"
