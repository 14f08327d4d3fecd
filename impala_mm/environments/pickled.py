"""Environments and wrappers of a notebook or script, in files: levels for the processes of a run.

`impala_mm.train` writes such a file into the run's folder: it holds a class or function with the
code that was defined in the notebook itself.
"""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from impala_mm.config import user_modules
from impala_mm.config.messages import describe_error
from impala_mm.environments import Suite
from impala_mm.environments.types import BadLevel


def load(level_name: str) -> Callable[..., Any]:
    """Return what the file of a level holds; raise BadLevel."""
    user_modules.search_folders()
    try:
        return pickle.loads(Path(level_name).read_bytes())
    except OSError as error:
        raise BadLevel(f"{level_name}: {error.strerror}") from error
    except Exception as error:
        raise BadLevel(
            f"{level_name} cannot be read: {describe_error(error)}; it must be read with the "
            f"modules that its environment uses, and with the version of Python that wrote it"
        ) from error


def wrap(environment: Any, path: str) -> Any:
    """Return an environment in the wrappers that a file holds, for --env_wrappers."""
    for wrapper in load(path):  # type: ignore[attr-defined]
        environment = wrapper(environment)
    return environment


class Files(Suite):
    """Levels that are files."""

    def maker(self, level: str) -> Callable[..., Any]:
        """Return what a file holds."""
        return load(level)
