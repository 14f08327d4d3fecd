"""Packages of environments: which one an id belongs to, and the extra that installs it.

Several register their ids only when a module of theirs is imported, whose name nobody guesses.
sandbox/suites.md shows how each is installed and played.
"""

import importlib.util
import re
from typing import NamedTuple

from impala_mm.environments.types import BadLevel


class Package(NamedTuple):
    """A package that registers environments."""

    extra: str  # of pyproject.toml; it installs the package
    module: str  # registers the ids when it is imported
    ids: str  # a regular expression of how they begin


PACKAGES = (
    Package("crafter", "crafter", "Crafter"),
    Package(
        "highway",
        "highway_env",
        "(highway|intersection|lane-keeping|merge|parking|racetrack|roundabout|two-way|u-turn)-",
    ),
    Package("metaworld", "metaworld", "Meta-World/"),
    Package("minigrid", "minigrid", "(MiniGrid|BabyAI)-"),
    Package("nethack", "nle", "NetHack"),
    Package(
        "robotics",
        "gymnasium_robotics",
        "Adroit|AntMaze|Fetch|FrankaKitchen|Hand(Manipulate|Reach)|PointMaze",
    ),
    Package("vizdoom", "vizdoom.gymnasium_wrapper", "Vizdoom"),
)


def module_of(name: str) -> str:
    """Return the module that registers an id; an empty string if no known package has it.

    BadLevel is raised if the package is not installed.
    """
    for extra, module, ids in PACKAGES:
        if re.match(ids, name):
            require(name, module.partition(".")[0], extra)
            return module
    return ""


def require(level: str, package: str, extra: str) -> None:
    """Raise BadLevel if the package that a level needs is not installed; the extra installs it."""
    if importlib.util.find_spec(package) is None:
        raise BadLevel(f"{level} needs {package}: pip install 'impala_mm[{extra}]'")
