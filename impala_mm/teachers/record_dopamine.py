"""Record the games of a Dopamine replay as a data set, for --teacher_data.

python -m impala_mm.teachers.record_dopamine CHECKPOINTS FOLDER --level_name=PongNoFrameskip-v4

CHECKPOINTS is the folder with the files `$store$_*` (`dopamine_replay`), of which the newest replay
is read; the games are added to FOLDER, as --mode=record does it. Rewards are those of the replay,
limited to -1 to 1.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from impala_mm.algorithms.interface import entry_spec
from impala_mm.config.errors import UserMistake
from impala_mm.config.settings import Config
from impala_mm.environments import from_flags
from impala_mm.environments.make import level_spec
from impala_mm.environments.types import BadLevel
from impala_mm.evaluation import recording
from impala_mm.replay.data_set import About, DataSetWriter, unroll_spec
from impala_mm.teachers import dopamine_replay
from impala_mm.teachers.kinds import NoTeacher

_UNROLL_LENGTH = 20  # students may have any other
_LINE_UNROLLS = 2_000  # unrolls between progress lines


def record(checkpoints: Path, folder: Path, level_name: str) -> About:
    """Add a replay's games to a data set, and return its description; raise UserMistake."""
    config = Config(level_name=level_name)
    spec = level_spec(level_name, **from_flags.environment_options(config))
    number = dopamine_replay.find(checkpoints)
    if number is None:
        raise NoTeacher(
            f"{checkpoints} has no file $store$_observation_ckpt.N.gz: give the folder in which "
            f"Dopamine stored its replay"
        )
    replay = dopamine_replay.read(checkpoints, number, spec)
    unroll = unroll_spec(entry_spec(spec, ()), _UNROLL_LENGTH)
    policy = f"Dopamine's replay {checkpoints.resolve()}, {number}"
    data = DataSetWriter(folder, recording.describe(spec, unroll, config, policy))
    print(f"replay {number}: {len(replay.action):,} transitions", flush=True)
    try:
        stream, data.next_stream = data.next_stream, data.next_stream + 1
        contents = dopamine_replay.unrolls(replay, spec, unroll, data.count)
        for at, content in enumerate(contents):
            data.add(stream, at, content)
            if at % _LINE_UNROLLS == _LINE_UNROLLS - 1:
                print(f"{data.about.episodes:,} games, {data.about.steps:,} steps", flush=True)
    finally:
        data.close()
    return data.about


def main(argv: Sequence[str] | None = None) -> None:
    """Record what the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoints", type=Path, help="folder with the files $store$_*")
    parser.add_argument("folder", type=Path, help="folder of the data set, new or to be added to")
    parser.add_argument("--level_name", required=True, help="the game that was played")
    given = parser.parse_args(argv)
    try:
        about = record(given.checkpoints, given.folder, given.level_name)
    except (UserMistake, BadLevel) as error:
        sys.exit(f"error: {error}")
    mean = "" if about.mean_return is None else f", mean return {about.mean_return:.2f}"
    print(f"{given.folder}: {about.episodes:,} complete games, {about.steps:,} steps{mean}")


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
