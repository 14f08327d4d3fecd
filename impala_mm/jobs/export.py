"""The job of --mode=export: writes a trained policy for use without this package.

The folder appears complete or not at all; an earlier export is replaced at once.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from impala_mm.config import flags
from impala_mm.config.errors import BadCheckpoint
from impala_mm.config.settings import Config
from impala_mm.policy import exports
from impala_mm.records import checkpoint
from impala_mm.runtime import lifecycle, log


def run(config: Config, chosen: Sequence[str]) -> NoReturn:
    """Write the export, print where it is, and end the process; `chosen`: the flags given."""
    lifecycle.handle_end_signals(lambda number, _: sys.exit(lifecycle.exit_code([number])))
    say = log.ProcessLogger("export")
    target = export_folder(config)
    lifecycle.load_tensorflow(0, 0, "cpu")
    import tensorflow as tf  # noqa: PLC0415

    from impala_mm.policy.core import PolicyCore  # noqa: PLC0415

    named = "--checkpoint" if config.checkpoint else "--logdir"
    try:
        path, about = checkpoint.find(config.checkpoint or config.logdir)
        changed = "eval_epsilon" in chosen
        changes: dict[str, Any] = {"eval_epsilon": config.eval_epsilon} if changed else {}
        policy = PolicyCore(path, about, **changes)
    except BadCheckpoint as error:
        flags.refuse(f"{named}: {error}")
    try:
        with exports.replace(target) as folder:
            exports.EXPORTS[config.export_format](policy, folder)
    except exports.CannotExport as error:
        flags.refuse(f"--export_format={config.export_format}: {error}")
    except (OSError, tf.errors.OpError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error).splitlines()[0]
        flags.refuse(f"--export_dir={target}: {reason}")
    size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    mean = about.episode_return
    quality = "" if mean is None else f", mean return {mean:.2f}"
    is_ours = config.export_format in exports.BUILT_IN
    readme = "; its README.txt explains how to use it" if is_ours else ""
    say(f"{path} ({about.frames:,.0f} frames{quality})")
    say(f"exported to {target} ({size / 1e6:.1f} MB){readme}")
    if is_ours:
        say(f"try it: cd {target} && {sys.executable} example.py")
    sys.exit(0)


def export_folder(config: Config) -> Path:
    """Return the folder of the export; refuse one that an export may not replace."""
    if config.job_name:
        flags.refuse(f"--mode=export is one process: leave --job_name={config.job_name} out")
    if not config.logdir and not config.checkpoint:
        flags.refuse("--mode=export needs --logdir: the folder of the run to export")
    if not config.logdir and not config.export_dir:
        flags.refuse("--mode=export --checkpoint needs --export_dir: the folder to write to")
    if config.export_format not in exports.EXPORTS:
        flags.refuse(f"--export_format: {exports.EXPORTS.unknown(config.export_format)}")
    target = Path(config.export_dir or Path(config.logdir) / "export").resolve()
    if wrong := exports.why_not_replaceable(target):
        flags.refuse(f"--export_dir={target}: {wrong}")
    return target
