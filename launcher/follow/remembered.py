"""The frontend's flags by which a run was started, which later commands of the run use, too.

They are in the run's record on this machine, which only its user can read and no other host gets,
since --env may contain secrets. A flag that a command is given takes precedence.
"""

import dataclasses
import math
from typing import Any, get_type_hints

from impala_mm.config.flags import infos
from launcher.plan.process_plan import common_environment
from launcher.plan.request import Request
from launcher.plan.settings import LauncherConfig
from launcher.supervise.json_files import converted, fits
from launcher.supervise.run_registry import Run

_INF = "inf"  # JSON has no infinity
_NAMES = [name for name, known in infos(LauncherConfig).items() if known.remembered]


def describe(config: LauncherConfig) -> dict[str, Any]:
    """Return the flags of a start for its record, with the values of variables that --env names."""
    values = {name: getattr(config, name) for name in _NAMES}
    flags: dict[str, Any] = {n: _INF if v == math.inf else v for n, v in values.items()}
    flags["env"] = [f"{name}={value}" for name, value in common_environment(config).items()]
    return flags


def use(run: Run, request: Request) -> Request:
    """Return the request of a later command, with the remembered flags that it does not give."""
    record, kinds = run.record, get_type_hints(LauncherConfig)
    flags = record.start_flags if record else {}
    flags = {name: math.inf if value == _INF else value for name, value in flags.items()}
    found = {
        name: converted(flags[name], kinds[name])
        for name in _NAMES
        if name in flags and name not in request.given and fits(flags[name], kinds[name])
    }
    return dataclasses.replace(request, launcher=dataclasses.replace(request.launcher, **found))
