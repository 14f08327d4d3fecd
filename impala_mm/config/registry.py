"""Registries: what there is of one kind, by name. Modules of the user add to them.

    NETWORKS = Registry("network", {"MLPAgent": "nets.agents:mlp"})
    register = NETWORKS.register

    @register("TwinAgent")
    def twin(style): ...

    register("TwinAgent", "my_package.networks:twin")  # imported when it is first asked for

A place, "module:attribute", keeps what it names out of the processes that only need the names: the
frontend loads no TensorFlow.
"""

import difflib
import importlib
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from impala_mm.config.errors import UserMistake

Thing = TypeVar("Thing")


class Registry(Generic[Thing]):
    """Things of one kind by name, in the order in which they were registered."""

    def __init__(self, kind: str, built_in: Mapping[str, Thing | str] | None = None):
        """Make a registry of things of this kind, a noun; `built_in`: our own, or their places."""
        self.kind = kind
        self._things: dict[str, Thing | str] = dict(built_in or {})

    def __contains__(self, name: object) -> bool:
        return name in self._things

    def __getitem__(self, name: str) -> Thing:
        """Return what has this name; raise a LookupError that is a sentence if nothing has."""
        if name not in self._things:
            raise LookupError(self.unknown(name))
        thing = self._things[name] = load(self._things[name])
        return thing

    @property
    def names(self) -> list[str]:
        """The names."""
        return list(self._things)

    def register(self, name: str, thing: Thing | str | None = None) -> Callable[[Thing], Thing]:
        """Add a thing, or its place; without one, return a decorator that does.

        A name that another thing has is a ValueError.
        """

        def add(thing: Thing | str) -> Thing | str:
            before = self._things.get(name)
            if before is not None and _place(before) != _place(thing):
                raise ValueError(
                    f"there is a {self.kind} {name} already, {_place(before)}: give "
                    f"{_place(thing)} another name"
                )
            self._things[name] = thing
            return thing

        if thing is not None:
            add(thing)
        return add  # type: ignore[return-value]

    def unknown(self, name: str) -> str:
        """Return the sentence that nothing has this name, with the nearest one and all others."""
        by_small = {known.lower(): known for known in self._things}
        close = difflib.get_close_matches(name.lower(), by_small, n=1, cutoff=0.6)
        hint = f"; did you mean {by_small[close[0]]}?" if close else ":"
        return (
            f"there is no {self.kind} {name!r}{hint} the names are {', '.join(self._things)}; "
            f"--import=my_module lets a module of yours add others"
        )


def load(thing: Thing | str) -> Thing:
    """Return a thing, or what its place names; raise UserMistake if there is no such place."""
    if not isinstance(thing, str):
        return thing
    module, _, attribute = thing.partition(":")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # the module imports another one that is missing
        raise UserMistake(f"{thing} was registered, and there is no module {error.name}") from None
    if not hasattr(found, attribute):
        raise UserMistake(f"{thing} was registered, and {module} has no {attribute}")
    return getattr(found, attribute)


def _place(thing: object) -> str:
    """Return where a thing is defined, so that a module may be imported again."""
    if isinstance(thing, str):
        return thing
    module, name = getattr(thing, "__module__", ""), getattr(thing, "__qualname__", "")
    return f"{module}:{name}" if name else repr(thing)
