"""`--stop`, whose request a host may miss; `test_other_hosts` stops real runs."""

from types import SimpleNamespace

import pytest

from launcher.commands import manage
from launcher.plan.request import UserError


def test_a_stop_is_requested_again_until_the_learners_have_ended(tmp_path, monkeypatch):
    """A host that has just been connected to may not have taken the first request."""
    monkeypatch.setattr(manage, "REPEAT_SECONDS", 0.0)
    requests = []
    control = SimpleNamespace(
        hosts=SimpleNamespace(remote_nodes={"there": None}), request_stop=requests.append
    )

    def states():
        return {"learners": {"state": "ended" if len(requests) == 2 else "running"}}

    manage._wait_for_learners(SimpleNamespace(states=states), control, timeout=5.0)
    assert requests == ["save", "save"]


def test_without_the_csv_of_the_start_another_one_is_asked_for(tmp_path):
    csv = tmp_path / "workers.csv"
    csv.write_text("job,ip\nlearner,localhost\n")
    record = SimpleNamespace(name="impala", csvs=[str(csv)])
    request = SimpleNamespace(given=[])
    assert [row.job for row in manage.read_rows(request, record)] == ["learner"]
    other = csv.rename(tmp_path / "moved.csv")
    with pytest.raises(UserError, match=r"workers.csv, with which impala was started, is gone: "):
        manage.read_rows(request, record)
    config = SimpleNamespace(workers_csv_path=str(other))
    request = SimpleNamespace(given=["workers_csv_path"], launcher=config)
    assert [row.ip for row in manage.read_rows(request, record)] == ["localhost"]
