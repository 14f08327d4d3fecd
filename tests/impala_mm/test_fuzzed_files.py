"""Damaged files of a run's folder: each is refused or left out in words."""

import json
import os
import re

import numpy as np
import pytest
import tensorflow as tf
from damaging import damaged, damaged_json
from hypothesis import HealthCheck, given, settings

from impala_mm.actor.host_cache import HostParameterCache
from impala_mm.config.errors import UserMistake
from impala_mm.data.variables import Variables
from impala_mm.records import checkpoint, run_folder
from impala_mm.records.checkpoint import CheckpointInfo
from impala_mm.records.json_lines import read_json_lines
from impala_mm.records.run_checkpoints import Checkpoints
from impala_mm.replay.spill import Owner, Spill
from impala_mm.replay.store import StoredUnroll

_OPTIONS = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
_ABOUT = CheckpointInfo(1, {"seed": 1}, {"--seed": 1}, {"python": "3"}, 5, 10, 20.0, 1.0, 1.0, 0.5)
_SPILLED = [StoredUnroll(key, 3, bytes([key]) * 50) for key in range(4)]


@pytest.fixture
def saved(tmp_path):
    """Return the variables of a run and its two checkpoints."""
    trained = [tf.Variable(tf.ones([4, 3]))]
    variables = Variables(trained=trained, carried=[], acting=trained)
    checkpoints = Checkpoints(tmp_path, variables, keep=5, say=lambda text: None)
    checkpoints.snapshot()
    return checkpoints, [
        checkpoints.save(_ABOUT._replace(updates=number, episode_return=float(number)))
        for number in (5, 6)
    ]


@pytest.mark.parametrize("name", ["about.json", "variables.index", "variables.data-00000-of-00001"])
def test_a_damaged_checkpoint_is_left_out_for_the_one_before_it(saved, tmp_path, name):
    checkpoints, (_, path) = saved
    file = path / name
    whole = file.read_bytes()
    damage = damaged_json if name == "about.json" else damaged

    @settings(max_examples=60, **_OPTIONS)
    @given(damage(whole))
    def each(content):
        file.write_bytes(content)
        intact = set()
        for best in (False, True):
            found, about = checkpoint.find(tmp_path, best)
            intact |= {found}
            assert about.updates in (5, 6)
        restored = checkpoints.restore(lambda text: None, lambda about: None)
        assert restored.updates in (5, 6)
        assert path not in intact or name == "about.json" or content == whole
        for moved in path.parent.glob("damaged-*"):  # put back for the next example
            moved.rename(path)

    each()


@pytest.mark.parametrize("elsewhere", ["/etc/hostname", "../0000000005/variables.index"])
def test_a_checkpoint_that_names_files_elsewhere_is_damaged(saved, elsewhere):
    _, (_, path) = saved
    about = json.loads((path / "about.json").read_text())
    about["files"][elsewhere] = [1, "x"]
    (path / "about.json").write_text(json.dumps(about))
    with pytest.raises(checkpoint.Damaged, match=re.escape(f"names a file elsewhere: {elsewhere}")):
        checkpoint.verify(path)


def test_a_pipe_in_a_checkpoint_is_not_waited_for(saved):
    _, (_, path) = saved
    (path / "variables.index").unlink()
    os.mkfifo(path / "variables.index")
    with pytest.raises(checkpoint.Damaged, match=r"variables\.index cannot be read: it is no file"):
        checkpoint.verify(path)


def test_damaged_rows_and_settings_are_left_out(tmp_path):
    rows, recorded = tmp_path / "metrics.jsonl", tmp_path / "settings.json"
    whole = b'{"frames": 1.0}\n{"frames": 2.0, "verdict": "x"}\n'

    @settings(max_examples=200, **_OPTIONS)
    @given(damaged(whole), damaged_json(b'{"seed": 1, "origins": {"a": []}}'))
    def each(content, flags):
        rows.write_bytes(content)
        assert all(isinstance(row, dict) for row in read_json_lines(rows))
        recorded.write_bytes(flags)
        assert isinstance(run_folder.recorded_settings(tmp_path), dict)

    each()
    rows.write_bytes(b"[" * 100_000 + b'\n{"frames": 3}\n')
    assert read_json_lines(rows) == [{"frames": 3}]


@pytest.mark.parametrize("name", ["spill.json", "0000000000.unrolls"])
def test_damaged_files_of_a_spilled_replay_are_left_out_or_refused(tmp_path, name):
    owner, said = Owner("run", "layout"), []
    spill = Spill(tmp_path / "spill", owner, 4, said.append)
    for unroll in _SPILLED:
        spill.add(unroll)
    spill.close()
    file = tmp_path / "spill" / name
    whole = file.read_bytes()
    damage = damaged_json if name == "spill.json" else damaged

    @settings(max_examples=100, **_OPTIONS)
    @given(damage(whole))
    def each(content):
        file.write_bytes(content)
        said.clear()
        try:
            again = Spill(tmp_path / "spill", owner, 4, said.append)
        except UserMistake as error:
            refused = str(error)
        else:
            found = [(u.key, u.version, bytes(u.content)) for u in again.read()]
            again.close()
            is_whole = content == whole or name == "spill.json"
            assert found == ([unroll[:3] for unroll in _SPILLED] if is_whole else [])
            assert is_whole or f"{file} is damaged (" in said[0]
            return
        assert name == "spill.json"
        assert str(tmp_path / "spill") in refused

    each()


def test_damaged_parameters_in_shared_memory_count_as_none(tmp_path):
    cache = HostParameterCache("run", tmp_path)
    vector = np.arange(100, dtype=np.uint8).tobytes()
    cache.store(7, vector)
    whole = cache._vector.read_bytes()

    @settings(max_examples=100, **_OPTIONS)
    @given(damaged(whole))
    def each(content):
        cache._vector.write_bytes(content)
        found = cache.newest(None)
        assert found is None or len(found[1]) == len(vector)
        with cache.pull_turn(1.0):
            pass

    each()
    cache.close()
