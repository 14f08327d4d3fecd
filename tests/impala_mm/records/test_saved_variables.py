"""Variables are found in checkpoints by their names, whatever their order is now."""

import random
import resource
import shutil

import pytest
import tensorflow as tf

from impala_mm.algorithms import agent
from impala_mm.config.settings import Config
from impala_mm.data import variable_names
from impala_mm.data.variables import Variables
from impala_mm.records import checkpoint, saved_variables
from impala_mm.records.checkpoint import CheckpointInfo, Mismatch, Unwritable
from impala_mm.records.run_checkpoints import Checkpoints
from tests.recorded import record, runs

FLAGS = {"level_name": "CartPole-v1", "mlp_sizes": "8,8", "separate_networks": True}
ABOUT = CheckpointInfo(1, {}, {}, {}, updates=1)


def _variables(**flags):
    config = Config.of_algorithm("impala")(algorithm="impala", **FLAGS | flags)
    return agent.make_agent(config, number=0).algorithm.variables


def _saved(folder, variables):
    for number, variable in enumerate([*variables.trained, *variables.carried]):
        variable.assign(tf.cast(tf.fill(variable.shape, number), variable.dtype))
    checkpoints = Checkpoints(folder, variables, keep=1)
    checkpoints.snapshot()
    return checkpoints.save(ABOUT)


def _values(variables):
    return {variable_names.of(v): v.numpy() for v in [*variables.trained, *variables.carried]}


def test_another_order_of_variables_of_equal_shapes_swaps_nothing(tmp_path):
    theirs, ours = _variables(), _variables()
    path, expected = _saved(tmp_path, theirs), _values(theirs)
    draws = random.Random(1)
    trained, carried = (draws.sample(group, len(group)) for group in (ours.trained, ours.carried))
    assert [v.shape for v in carried] != [v.shape for v in ours.carried]
    shuffled = ours._replace(trained=trained, carried=carried)
    saved_variables.load(path, saved_variables.named(shuffled))
    for variable in [*trained, *carried]:
        assert (variable.numpy() == expected[variable_names.of(variable)]).all()


@pytest.mark.parametrize("name", ["impala-teacher", "sac", "dqn"])
def test_numbered_variables_are_read_by_a_recorded_order_not_that_of_todays_groups(
    name, monkeypatch
):
    by_number = saved_variables._in_order
    monkeypatch.setattr(
        saved_variables, "_in_order", lambda order, keys: by_number(order, _by_owner(keys))
    )
    read = runs.load(runs.FOLDERS / name)
    monkeypatch.undo()
    assert not record.differences(read, runs.load(runs.FOLDERS / name))


def test_numbered_variables_of_a_users_algorithm_are_in_the_order_of_its_groups():
    keys = ["carried/updates", "carried/optimizer/step"]
    stored = ["trained/0", "carried/0", "carried/1"]
    places = saved_variables.find_places(keys, stored, "my.algorithm")
    assert places == {"carried/updates": "carried/0", "carried/optimizer/step": "carried/1"}


def _by_owner(keys):
    """Return keys in the reverse order of their owners, each owner's as they are."""
    owners = list(dict.fromkeys(_owner(key) for key in keys))
    return sorted(keys, key=lambda key: -owners.index(_owner(key)))


def _owner(key):
    return "/".join(key.split("/")[1 : 3 if "/features/" in key else 2])


def test_a_former_name_is_read_as_that_of_today_and_so_are_its_slots(tmp_path, monkeypatch):
    theirs = _variables()
    path, expected = _saved(tmp_path, theirs), _values(theirs)
    for variable in [*theirs.trained, *theirs.carried]:
        former = variable._path_in_algorithm
        variable._path_in_algorithm = former.replace("policy_head", "actor/head")
        variable.assign(tf.zeros_like(variable))
    with pytest.raises(Mismatch, match=r"actor/head/b .* lacks it, and has policy_head"):
        saved_variables.load(path, saved_variables.named(theirs))
    monkeypatch.setitem(saved_variables._RENAMED, "policy_head", "actor/head")
    saved_variables.load(path, saved_variables.named(theirs))
    for variable in [*theirs.trained, *theirs.carried]:
        former = variable_names.of(variable).replace("actor/head", "policy_head")
        assert (variable.numpy() == expected[former]).all(), former


def test_a_variable_that_changed_its_kind_is_found_by_its_name(tmp_path):
    theirs = _variables(impact_clip=0.3)
    path = _saved(tmp_path, theirs)
    target = [v for v in theirs.carried if variable_names.of(v).startswith("target/network")]
    expected = [v.numpy() for v in target]
    ours = theirs._replace(weights=[*(theirs.weights or ()), *target])
    _clear(ours)
    saved_variables.load(path, saved_variables.named(ours))
    assert all((v.numpy() == x).all() for v, x in zip(target, expected, strict=True))


def _clear(variables: Variables):
    for variable in [*variables.trained, *variables.carried]:
        variable.assign(tf.zeros_like(variable))


def test_weights_that_are_saved_alone_have_the_names_of_the_run(tmp_path):
    theirs = _variables(normalize_observations=True)
    source = _saved(tmp_path, theirs)
    saved_variables.save_weights(theirs, source, tmp_path / "alone", ABOUT, half=True)
    shutil.rmtree(source)
    wanted = saved_variables.named_weights(theirs)
    expected = {key: variable.numpy() for key, variable in wanted.items()}
    _clear(theirs)
    saved_variables.load(tmp_path / "alone", wanted)
    for key, variable in wanted.items():
        assert (variable.numpy() == expected[key]).all(), key


def test_weights_for_which_there_is_no_room_leave_nothing_behind(tmp_path):
    theirs = _variables()
    source, folder = _saved(tmp_path, theirs), tmp_path / "new" / "alone"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(Unwritable, match="File too large"):
            saved_variables.save_weights(theirs, source, folder, ABOUT, half=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(folder.parent.iterdir())
    (folder.parent / ".alone.writing").mkdir()
    (folder.parent / ".alone.writing" / "half").touch()  # of a process that was killed
    saved_variables.save_weights(theirs, source, folder, ABOUT, half=False)
    assert [each.name for each in folder.parent.iterdir()] == ["alone"]
    assert not (folder / "half").exists()
    checkpoint.verify(folder)
