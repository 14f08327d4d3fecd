"""The folders of small runs, written by the code that recorded them, are read as they were then."""

import json
import shutil

import pytest
from processes import EXPERIMENT, run

from tests.recorded import record, runs
from tests.recorded.cases import RUNS

VARIABLES, CONTENTS = (json.loads(path.read_text()) for path in (runs.VARIABLES, runs.CONTENTS))
BY_NAME = {case.name: case for case in RUNS}


@pytest.mark.parametrize("name", BY_NAME)
def test_a_resumed_learner_reads_every_variable_as_it_was(name):
    problems = record.differences(VARIABLES[name], runs.load(runs.FOLDERS / name))
    assert not problems, "\n".join(problems[:20])


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_a_folder_is_resumed_and_has_the_files_and_metrics_that_were_recorded(name, tmp_path):
    folder = shutil.copytree(runs.FOLDERS / name, tmp_path / "run")
    flags = runs.flags_of(BY_NAME[name]) | {"logdir": folder, "total_environment_frames": 500}
    code, printed = run(*EXPERIMENT, *(f"--{flag}={value}" for flag, value in flags.items()))
    assert code == 0, printed
    assert "resumed at" in printed
    assert ("restored its replay" in printed) == ("replay_save" in flags)
    assert runs.contents(folder) == CONTENTS[name]
