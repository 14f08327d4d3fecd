"""Modules that are loaded when they are first used, and not when they are imported.

TensorFlow imports much that no process here ever uses (`tensorflow_import` names it): it takes time
at every start, and memory of each actor of a host. A deferred module is there for who imports it,
and loads itself when anything in it is asked for: so nothing breaks where it is needed after all.
"""

import contextlib
import importlib.util
import sys
import threading
from collections.abc import Collection, Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


@contextlib.contextmanager
def lazily_imported(names: Collection[str]) -> Iterator[None]:
    """Modules of these names that are imported within."""
    finder = _LazyFinder(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _LazyModule(ModuleType):
    """Until something is asked of it; `importlib`'s own loads itself when it is imported twice."""

    def __getattr__(self, name: str) -> Any:
        spec = object.__getattribute__(self, "__spec__")
        with spec.loader.lock:
            if not spec.loader.begun:
                spec.loader.begun = True  # it may ask for its own names meanwhile
                try:
                    spec.loader.real.exec_module(self)
                except BaseException:
                    spec.loader.begun = False
                    raise
                self.__class__ = ModuleType  # type: ignore[assignment]
        return ModuleType.__getattribute__(self, name)


class _LazyLoader(Loader):
    def __init__(self, real: Loader):
        self.real, self.begun, self.lock = real, False, threading.RLock()

    def create_module(self, spec: ModuleSpec) -> None:
        """As any."""

    def exec_module(self, module: ModuleType) -> None:
        """Loads nothing yet."""
        module.__class__ = _LazyModule  # not before: the machinery asks new modules much


class _LazyFinder(MetaPathFinder):
    def __init__(self, names: Collection[str]):
        self._names, self._looking = names, False

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        if name not in self._names or self._looking:
            return None
        self._looking = True  # for whom the others know
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if spec and spec.loader:
            spec.loader = _LazyLoader(spec.loader)
        return spec
