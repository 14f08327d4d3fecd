"""The group of learners: found in the launchers' variables, refused if it cannot work."""

import os

import pytest

from impala_mm.config.settings import Config
from impala_mm.distributed import group
from impala_mm.runtime.starter import _VARIABLES, ProcessRank, process_rank, widen_core_binding


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for names in _VARIABLES:
        for name in names:
            monkeypatch.delenv(name, raising=False)


def _as_if_by(monkeypatch, names, values):
    for name, value in zip(names, values, strict=True):
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("names", _VARIABLES, ids=lambda names: names[0])
def test_each_launchers_variables_give_the_rank(monkeypatch, names):
    _as_if_by(monkeypatch, names, ("8", "5", "4", "1"))
    assert process_rank() == ProcessRank(size=8, rank=5, local_size=4, local_rank=1)


@pytest.mark.parametrize(
    ("tasks", "node", "learners"),
    [("2(x3),1", 2, 2), ("2(x3),1", 3, 1), ("4", 0, 4), ("3,5", 1, 5)],
)
def test_slurm_says_how_many_are_on_each_node(monkeypatch, tasks, node, learners):
    _as_if_by(monkeypatch, _VARIABLES[-1], ("7", "6", tasks, "0"))
    monkeypatch.setenv("SLURM_NODEID", str(node))
    assert process_rank().local_size == learners


def test_a_launcher_without_variables_about_hosts_still_gives_rank_and_size(monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("PMI_RANK", "1")
    assert process_rank() == ProcessRank(size=2, rank=1, local_size=1, local_rank=0)


def test_without_a_launcher_a_learner_is_alone(monkeypatch):
    assert process_rank() == ProcessRank(1, 0, 1, 0)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    assert process_rank().size == 1
    assert widen_core_binding() == ""


def test_a_rank_that_was_bound_to_one_core_frees_itself(monkeypatch):
    everything = os.sched_getaffinity(0)
    if len(everything) < 2:
        pytest.skip("there is only one core")
    _as_if_by(monkeypatch, _VARIABLES[0], ("2", "0", "2", "0"))
    os.sched_setaffinity(0, {min(everything)})
    try:
        assert "bound to 1 core" in widen_core_binding()
        assert os.sched_getaffinity(0) == everything
        assert widen_core_binding() == "", "it is free"
    finally:
        os.sched_setaffinity(0, everything)


def test_more_learners_than_horovod_sees_is_refused(monkeypatch):
    """With another MPI than Horovod's every process would train alone, unnoticed."""
    _as_if_by(monkeypatch, _VARIABLES[0], "2020")
    monkeypatch.setattr(group, "HorovodGroup", lambda config: group.SingleLearner())
    with pytest.raises(SystemExit, match="started 2 processes, but Horovod sees 1"):
        group.join_group(Config())


def test_several_learners_without_horovod_are_refused_and_one_needs_none(monkeypatch):
    def missing(config):
        raise ImportError("No module named 'horovod'")

    monkeypatch.setattr(group, "HorovodGroup", missing)
    assert group.join_group(Config()).size == 1
    _as_if_by(monkeypatch, _VARIABLES[0], "2020")
    with pytest.raises(SystemExit, match="make horovod"):
        group.join_group(Config())
