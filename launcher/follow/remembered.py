"""The frontend's flags by which a run was started, which later commands of the run use, too.

They are in a file of the run's folder on this machine that only its user can read, since --env may
contain secrets. A flag that a command is given takes precedence.
"""

import dataclasses
import math
from typing import Any

from impala_mm.config.flags import infos
from launcher.plan.process_plan import common_environment
from launcher.plan.request import Request
from launcher.plan.settings import LauncherConfig
from launcher.supervise.run_registry import Run
from launcher.supervise.task import read_json, write_json

_FILE = "start_flags.json"
_INF = "inf"  # JSON has no infinity
_NAMES = [name for name, known in infos(LauncherConfig).items() if known.remembered]


def write(run: Run, config: LauncherConfig) -> None:
    """Remember the flags of a start, and the values of variables that --env names."""
    values = {name: getattr(config, name) for name in _NAMES}
    content: dict[str, Any] = {n: _INF if v == math.inf else v for n, v in values.items()}
    content["env"] = [f"{name}={value}" for name, value in common_environment(config).items()]
    write_json(run.folder / _FILE, content)


def use(run: Run, request: Request) -> Request:
    """Return the request of a later command, with the remembered flags that it does not give."""
    default = LauncherConfig()
    content = read_json(run.folder / _FILE)
    if isinstance(content.get("env"), list):
        content["env"] = tuple(map(str, content["env"]))
    content = {name: math.inf if value == _INF else value for name, value in content.items()}
    found = {
        name: content[name]
        for name in _NAMES
        if name not in request.given and _is_alike(content.get(name), getattr(default, name))
    }
    return dataclasses.replace(request, launcher=dataclasses.replace(request.launcher, **found))


def _is_alike(value: object, default: object) -> bool:
    """Return whether a value of the file has the type of its flag; a damaged file has others."""
    if isinstance(default, (int, float)) and not isinstance(default, bool):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return type(value) is type(default)
