"""The frontend: starts every process of a run from a CSV of hosts, follows the run and stops it.

The command `impala-mm-cluster` is the same as `python run_experiment_mm_raw.py`, and
`impala-mm docs` prints the folder of the documentation, which begins with README.md.

python run_experiment_mm_raw.py --workers_csv_path=workers.csv --level_name=PongNoFrameskip-v4

Many runs, which share the CSV's hosts, or this machine without one:
    python run_experiment_mm_raw.py --workers_csv_path=workers.csv --experiment=sweep.toml

With these flags added, it starts nothing:
    --dry_run       print the commands that would be started
    --check         check the hosts, and print how to fix problems

While the run is running, from any terminal:
    --status        show its processes and its bottleneck
    --logs=actor-3  print and follow the log of one process
    --attach        follow the run again
    --save          save a checkpoint
    --stop          save and stop the run
    --dashboard     show all runs on a page in the browser

The frontend also accepts every flag of experiment.py and passes on those that are given.
"""

import os
import signal
import sys

from impala_mm.config import command_line, flag_values, flags, user_modules
from impala_mm.config.settings import Config
from impala_mm.runtime import lifecycle


def main(argv: list[str]) -> None:
    """Parse the flags, call the launcher and exit with its exit code."""
    lifecycle.end_with_owner()
    if sys.stdout is not None:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    user_modules.refuse_foreign()
    # Imported after the check that there is no other package of this name.
    from launcher.commands import dispatch  # noqa: PLC0415
    from launcher.follow.console import discard_output  # noqa: PLC0415
    from launcher.plan.request import Request  # noqa: PLC0415
    from launcher.plan.settings import LauncherConfig  # noqa: PLC0415
    from launcher.supervise.errors import LauncherError  # noqa: PLC0415

    if "PYTHONPATH" in os.environ:  # processes of this machine may have another current folder
        entries = os.environ["PYTHONPATH"].split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, entries))
    (launcher, config), given = command_line.parse(argv, __doc__ or "", LauncherConfig, Config)
    if config.dashboard:
        from launcher.dashboard.serve import serve  # noqa: PLC0415

        known = flags.infos(launcher)
        for_dashboard = {name for name in known if known[name].for_dashboard}
        own = flags.arguments(launcher, [name for name in given if name in for_dashboard])
        serve(config, launcher.tmux_sess, own)
    if config.debug:
        flags.refuse("--debug trains in one process, without a CSV: use experiment.py")
    flag_values.check_effects(launcher, config, evaluators=True)
    command = [sys.executable, os.path.abspath(__file__), *argv[1:]]
    try:
        code = dispatch.main(Request(launcher, config, given, command))
    except LauncherError as error:
        flags.refuse(str(error))
    except KeyboardInterrupt:  # no process was started yet
        code = 130
    except BrokenPipeError:  # the reader of the output has exited; the run keeps running
        discard_output()
        code = 128 + signal.SIGPIPE
    sys.exit(code)


if __name__ == "__main__":
    main(sys.argv)
