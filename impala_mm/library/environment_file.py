"""An environment that was defined in Python, written to a file that is a level for all processes.

`environments.pickled` reads it.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from impala_mm.config.environment_flags import json_text
from impala_mm.config.errors import BadEnvironment
from impala_mm.config.messages import describe_error
from impala_mm.environments import levels
from impala_mm.environments.opening import takes_render_mode


def save(make: Callable[..., Any], name: str, path: Path) -> None:
    """Write what makes the environment `name`; raise BadEnvironment if it cannot be pickled."""
    import cloudpickle  # noqa: PLC0415

    try:
        data = cloudpickle.dumps(make)
    except Exception as error:  # whatever the objects raise that it refers to
        raise BadEnvironment(
            f"{name} cannot be passed to the actors ({describe_error(error)}): it refers to an "
            f"object that cannot be pickled; make that object inside of it, or define {name} in a "
            f'module and name it, as in "my_module:{name}"'
        ) from error
    path.write_bytes(data)


def make(
    wrappers: Sequence[Callable[..., Any]],
    kwargs: Mapping[str, Any],
    level: Any,
    render_mode: str | None = None,
) -> Any:
    """Return a wrapped environment; `level` is an id, or what makes it."""
    if isinstance(level, str):
        environment = levels.find_level(level, json_text(kwargs)).open(render_mode is not None)
    else:
        draws = render_mode is not None and takes_render_mode(level)
        environment = level(**kwargs, **({"render_mode": render_mode} if draws else {}))
    for wrapper in wrappers:
        environment = wrapper(environment)
    return environment
