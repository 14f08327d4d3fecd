"""Damaged and crafted files of a run's folder: each is refused or left out in words."""

import contextlib
import hashlib
import json
import os
import re
import zlib

import numpy as np
import pytest
import tensorflow as tf
from damaging import damaged, damaged_json
from hypothesis import HealthCheck, given, settings
from recorded_catch import record_catch

from impala_mm.actor.policy_puller import HostParameterCache
from impala_mm.algorithms.interface import entry_spec
from impala_mm.config.errors import UserMistake
from impala_mm.data.trajectory import UnrollCodec
from impala_mm.data.variables import Variables
from impala_mm.environments.make import level_spec
from impala_mm.records import checkpoint, run_folder, saved_variables
from impala_mm.records.checkpoint import CheckpointInfo
from impala_mm.records.run_checkpoints import Checkpoints
from impala_mm.records.run_contents import read_json_lines
from impala_mm.replay.data_set import BadData, unroll_spec
from impala_mm.replay.recorded_games import RecordedGames
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

    @settings(max_examples=40, **_OPTIONS)
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


@pytest.mark.parametrize("name", ["variables.index", "variables.data-00000-of-00001"])
def test_variables_whose_checksums_were_computed_anew_are_loaded_or_refused(saved, name):
    _, (_, path) = saved
    whole, about = (path / name).read_bytes(), json.loads((path / "about.json").read_text())

    @settings(max_examples=40, **_OPTIONS)
    @given(damaged(whole))
    def each(content):
        (path / name).write_bytes(content)
        about["files"][name] = [len(content), hashlib.sha256(content).hexdigest()]
        (path / "about.json").write_text(json.dumps(about))
        checkpoint.verify(path)
        with contextlib.suppress(checkpoint.Mismatch):  # no other exception
            saved_variables.load(path, {"trained/0": tf.Variable(tf.zeros([4, 3]))})

    each()


@pytest.mark.parametrize("name", ["learners", "updates", "steps", "offline_updates", "frames"])
@pytest.mark.parametrize("number", [-1, 1.5, 1e400, 2**70, "3", True])
def test_a_checkpoint_with_impossible_counts_is_damaged(saved, name, number):
    _, (_, path) = saved
    about = json.loads((path / "about.json").read_text()) | {name: number}
    (path / "about.json").write_text(json.dumps(about))
    if name == "frames" and number in (1.5, 2**70):
        assert checkpoint.verify(path).frames == number
        return
    with pytest.raises(checkpoint.Damaged, match=re.escape(f"{path} has no about.json")):
        checkpoint.verify(path)


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

    @settings(max_examples=40, **_OPTIONS)
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

    @settings(max_examples=40, **_OPTIONS)
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


@pytest.mark.parametrize("part", ["data.json", "header", "content"])
def test_recorded_games_whose_checksums_agree_are_read_or_refused(tmp_path, part):
    about = record_catch(tmp_path, 2, 5)
    unroll = unroll_spec(entry_spec(level_spec("catch"), ()), 8)
    file = tmp_path / ("data.json" if part == "data.json" else "0000000000.unrolls")
    whole = file.read_bytes()
    if part != "data.json":
        line, content = whole.split(b"\n", 1)
    damage = {
        "data.json": lambda: damaged_json(whole),
        "header": lambda: damaged_json(line[9:]),
        "content": lambda: damaged(content),
    }[part]()
    outcomes = set()

    @settings(max_examples=40, **_OPTIONS)
    @given(damage)
    def each(changed):
        if part == "header":
            changed = b"%08x %s\n" % (zlib.crc32(changed), changed) + content
        elif part == "content":
            header = json.loads(line[9:])
            header["sizes"][-1] += len(changed) - len(content)
            text = json.dumps(header | {"checksum": zlib.crc32(changed)}).encode()
            changed = b"%08x %s\n" % (zlib.crc32(text), text) + changed
        file.write_bytes(changed)
        rows = np.zeros([1, UnrollCodec(unroll).size], np.uint8)
        entries = UnrollCodec(unroll).arrays(rows).entries
        try:
            games = RecordedGames([tmp_path], about, unroll, lambda text: None)
            for number in range(len(games)):
                games.write(number, tf.nest.map_structure(lambda x: x[0], entries))
                assert np.isfinite(entries.reward).all()
            outcomes.add("read")
        except BadData:  # and no other exception
            outcomes.add("refused")

    each()
    assert "refused" in outcomes


def test_damaged_parameters_in_shared_memory_count_as_none(tmp_path):
    cache = HostParameterCache("run", tmp_path)
    vector = np.arange(100, dtype=np.uint8).tobytes()
    cache.store(7, vector)
    whole = cache._vector.read_bytes()

    @settings(max_examples=40, **_OPTIONS)
    @given(damaged(whole))
    def each(content):
        cache._vector.write_bytes(content)
        found = cache.newest(None)
        assert found is None or len(found[1]) == len(vector)
        with cache.pull_turn(1.0):
            pass

    each()
    cache.close()
