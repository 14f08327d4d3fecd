"""Environments and wrappers that were defined in Python, written to files for all processes.

`environments.pickled` reads them.
"""

import sys
from pathlib import Path
from typing import Any

from impala_mm.config.errors import BadEnvironment
from impala_mm.config.messages import describe_error
from impala_mm.runtime import whole_file


def save(defined: Any, name: str, path: Path) -> None:
    """Write what is called `name` to a file; raise BadEnvironment if it cannot be pickled."""
    import cloudpickle  # noqa: PLC0415

    if script := sys.modules.get("__mp_main__"):  # this process was spawned by multiprocessing,
        cloudpickle.register_pickle_by_value(script)  # under whose name no actor finds the script
    try:
        data = cloudpickle.dumps(defined)
    except Exception as error:  # whatever the objects raise that it refers to
        raise BadEnvironment(
            f"{name} cannot be passed to the actors ({describe_error(error)}): it refers to an "
            f"object that cannot be pickled; make that object inside of it, or define {name} in a "
            f'module and name it, as in "my_module:{name}"'
        ) from error
    whole_file.write(path, data)
