"""Which command of the frontend the flags ask for."""

import pytest

from launcher.commands import dispatch
from launcher.follow import controller, names
from launcher.plan.request import Request, UserError
from launcher.plan.settings import LauncherConfig


def _main(**config):
    return dispatch.main(Request(LauncherConfig(**config), given=[*config]))


@pytest.mark.parametrize("left_by", [{}, {"attach": True}, {"attach": True, "detach": True}])
def test_a_controller_may_have_the_command_of_the_frontend_that_leaves_it(monkeypatch, left_by):
    assert "--control" in controller.command_of(["frontend"], "impala")
    monkeypatch.setitem(dispatch.COMMANDS, "control", lambda run, request: 7)
    monkeypatch.setattr(names, "find", lambda name, given: dispatch.Run(name))
    assert _main(control=True, **left_by) == 7


def test_two_commands_at_once_are_refused():
    with pytest.raises(UserError, match="--dry_run and --stop are two commands: give one of them"):
        _main(stop=True, dry_run=True)
