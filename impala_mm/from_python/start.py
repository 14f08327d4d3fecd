"""Starting runs from Python: `train` here, `launch` on a CSV's hosts, many by `experiment`."""

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from impala_mm.config import command_line, flag_values, flags, setting_files
from impala_mm.config.environment_flags import FILE_SUFFIX
from impala_mm.config.errors import BadEnvironment, BadSettings
from impala_mm.config.messages import describe_error
from impala_mm.config.settings import Config
from impala_mm.from_python.run import Run, is_running, remove_unused
from impala_mm.records import run_folder
from impala_mm.runtime import safe_files

Environment = str | Callable[..., Any]

_PROGRAMS = Path(__file__).resolve().parents[2]
# Flags that the name of a run's folder depends on.
_OF_FOLDERS = ("level_name", "logdir", "algorithm", "preset", "config")
_OTHER_MODES = ("test", "record", "export", "rehearsal")
# Flags by which experiment.py is one process, or something else than a training.
_NOT_FOR_TRAINING = (
    *("job_name", "task", "learner"),
    *("validate", "show_config", "dashboard"),
)
# Flags of the frontend that take several values.
REPEATED = ("env", "ssh_accept_key", "container_image", "node_selector")


def train(
    level_name: Environment | Sequence[Environment] | None = None,
    *,
    wrappers: Sequence[Callable[..., Any]] = (),
    progress: bool = True,
    **settings: Any,
) -> Run:
    """Start a training on this machine, and return its run at once.

        run = impala_mm.train("CartPole-v1", algorithm="ppo", num_actors=3)
        run.wait()

    `level_name` is the id of an environment, as for --level_name, or a class or function that makes
    one, which may be defined in a notebook; several train one policy. `wrappers` are called with
    each environment. `settings` are the flags of experiment.py, with the same names and checks: a
    list is written as in mlp_sizes=[256, 256], and env_kwargs is a dictionary. `progress`: print
    what the run prints. Raises BadSettings and BadEnvironment.
    """
    for name in _NOT_FOR_TRAINING:
        if name in settings:
            raise BadSettings(f"{name} is no setting of a training: leave it out")
    several = isinstance(level_name, list | tuple) and level_name
    levels: list[Any] = list(level_name) if several else [level_name]  # type: ignore[arg-type]
    if level_name is not None:
        settings["level_name"] = ",".join(map(_name, levels))
    if isinstance(wrappers, str) or not all(map(callable, wrappers)):
        raise BadEnvironment(
            f"wrappers={wrappers!r}: it is a list of classes or functions that are called with an "
            f"environment; env_wrappers takes the names of wrappers"
        )
    config, _ = command_line.parse_settings(settings, Config)
    if config.mode in _OTHER_MODES:
        raise BadSettings(
            f"mode={config.mode} is no training: impala_mm.evaluate tests a policy, and "
            f"impala_mm.load_policy(...).export writes it as a SavedModel"
        )
    with flags.refusals_raised():
        flag_values.check_effects(config, notes=False)
    logdir = _folder(config)
    if any(callable(level) for level in levels):
        paths = [
            _write(level, f"{_name(level)}-{number}" if number else _name(level), logdir)
            if callable(level)
            else level
            for number, level in enumerate(levels)
        ]
        settings["level_name"] = ",".join(paths)
    if wrappers:
        path = _write(list(wrappers), "wrappers", logdir)
        call = f"impala_mm.environments.pickled:wrap{json.dumps({'path': path})}"
        settings["env_wrappers"] = ",".join(filter(None, [config.env_wrappers, call]))
    settings["logdir"] = logdir
    arguments = setting_files.to_arguments(settings)
    return Run(_PROGRAMS / "experiment.py", arguments, logdir, progress)


def launch(
    workers_csv_path: str | Path,
    level_name: str | None = None,
    *,
    progress: bool = True,
    **settings: Any,
) -> Run:
    """Start a training on the hosts of a CSV, and return its run at once.

        run = impala_mm.launch("workers.csv", "PongNoFrameskip-v4", algorithm="ppo")

    `settings` are the flags of run_experiment_mm_raw.py. The run stops with this Python process.
    """
    if callable(level_name):
        raise BadEnvironment(
            f"{_name(level_name)} is defined here, and no other host has it: define it in a module "
            f'and name it, as in "my_module:{_name(level_name)}"'
        )
    if level_name is not None:
        settings["level_name"] = _name(level_name)
    named = {name: settings[name] for name in _OF_FOLDERS if name in settings}
    logdir = _folder(command_line.parse_settings(named, Config)[0])
    # A path that is not absolute is below the project's folder on each host.
    given = settings.get("logdir") or Path("runs", logdir.name)
    settings["logdir"] = given if (Path.cwd() / given).resolve() == logdir else logdir
    settings["workers_csv_path"] = workers_csv_path
    program = _PROGRAMS / "run_experiment_mm_raw.py"
    return Run(program, setting_files.to_arguments(settings, REPEATED), logdir, progress)


def experiment(
    path: str | Path,
    workers_csv_path: str | Path | None = None,
    *,
    progress: bool = True,
    **settings: Any,
) -> Run:
    """Start an experiment, and return it at once; what is said of a run holds for all its trials.

        impala_mm.experiment("sweep.toml").wait()

    `path` is a file for --experiment of run_experiment_mm_raw.py, and `settings` are its flags.
    Without a CSV the trials run on this machine. The same call resumes it.
    """
    settings["logdir"] = logdir = Path(settings.get("logdir") or f"runs/{Path(path).stem}")
    if workers_csv_path is not None:
        settings["workers_csv_path"] = workers_csv_path
    arguments = setting_files.to_arguments({"experiment": path, **settings}, REPEATED)
    return Run(_PROGRAMS / "run_experiment_mm_raw.py", arguments, logdir.resolve(), progress)


def _folder(config: Config) -> Path:
    """Return the run's folder, which exists now, and to which no other run writes."""
    try:
        logdir = run_folder.make_folder(config).resolve()
    except OSError as error:
        raise BadSettings(f"logdir={config.logdir or 'runs'}: {error.strerror}") from error
    if is_running(logdir):
        raise BadSettings(
            f"logdir={config.logdir}: a run that you started here is writing to it: call its "
            f"stop(), or name another folder"
        )
    with flags.refusals_raised():
        run_folder.refuse_taken(logdir)
    return logdir


def _write(defined: Any, name: str, logdir: Path) -> str:
    """Write an environment or wrappers to the run's folder; return the file's path."""
    path = logdir / (re.sub(r"[^\w.-]+", "-", name) + FILE_SUFFIX)
    if "," in str(path):
        raise BadSettings(f"logdir={logdir}: a folder with environments has no comma in its name")
    try:
        _write_defined(defined, name, path)
    except BadEnvironment:
        remove_unused(logdir)
        raise
    except OSError as error:
        raise BadSettings(f"logdir={logdir}: {error.strerror}") from error
    return str(path)


def _name(level: Any) -> str:
    """Return a level's id, or the name of what makes it."""
    if isinstance(level, str) and level:
        return level
    if hasattr(level, "num_envs") and not callable(level):
        raise BadEnvironment(
            f"{level!r} is a vector of environments, and each actor makes its own of num_envs: "
            f"give the class or function that makes it, with a parameter num_envs"
        )
    if not callable(level):
        raise BadEnvironment(
            f"{level!r} is no environment to train on: give an id, or a class or function that "
            f"makes an environment, since each actor makes its own"
        )
    level = getattr(level, "func", level)  # of a functools.partial
    return getattr(level, "__name__", type(level).__name__)


def _write_defined(defined: Any, name: str, path: Path) -> None:
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
    safe_files.write_whole(path, data)
