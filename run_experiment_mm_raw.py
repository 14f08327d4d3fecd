"""The frontend: starts every process of a run from a CSV of hosts, watches, stops.

python run_experiment_mm_raw.py --workers_csv_path=workers.csv --level_name=PongNoFrameskip-v4
python run_experiment_mm_raw.py --dry_run        the same, with --workers_csv_path and so on: what
                                                 would be started
python run_experiment_mm_raw.py --check          what must be mended before
python run_experiment_mm_raw.py --status         how the run is, and what binds it
python run_experiment_mm_raw.py --logs=actor-3   what one process says
python run_experiment_mm_raw.py --attach         follow it again
python run_experiment_mm_raw.py --stop           save, and end all of it

It takes every flag of experiment.py and hands on those that are given.
"""

import os
import signal
import sys

from impala_mm.config import flags
from impala_mm.config.settings import Config
from impala_mm.records import run_folder
from impala_mm.runtime import ports
from launcher.commands import dispatch
from launcher.plan.request import Request, UserError
from launcher.plan.settings import LauncherConfig


def main(argv: list[str]) -> None:
    """Parses the flags and calls the launcher."""
    if sys.stdout is not None:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    (launcher, config), given = flags.parse(argv, __doc__ or "", LauncherConfig, Config)
    request = Request(
        launcher=launcher,
        given=given,
        flags={
            name: flags.format_value(getattr(config, name))
            for name in given
            if hasattr(config, name)
        },
        logdir=config.logdir,
        log_max_mb=config.log_max_mb,
        make_logdir=lambda: run_folder.make_folder(config),
        check_free=ports.check_free,
    )
    try:
        code = dispatch.main(request)
    except UserError as error:
        flags.refuse(str(error))
    except KeyboardInterrupt:  # nothing was started yet
        code = 130
    except BrokenPipeError:  # whoever read this has gone; a run goes on
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 128 + signal.SIGPIPE
    sys.exit(code)


if __name__ == "__main__":
    main(sys.argv)
