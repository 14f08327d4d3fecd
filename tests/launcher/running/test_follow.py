"""What a frontend prints of failures: each traceback once, however many actors have it."""

from types import SimpleNamespace

from launcher.running.follow import Follower

OVER = (
    "00:41:43 it exited with code 1; the run ends\n00:41:43 -- learners: failed, exit code 1 --\n"
)


def _state(name, *lines):
    failure = {"time": 1.0, "why": "it exited with code 1", "lines": lines, "next": "it ends"}
    return {"name": name, "host": "gpu1", "log": f"/{name}.log", "failure": failure}


def test_lines_that_are_on_the_screen_are_not_printed_again(tmp_path, capsys):
    said, states = [], {}
    control = SimpleNamespace(run=SimpleNamespace(states=lambda: states))
    follower = Follower(control, tmp_path, said.append)
    (tmp_path / "learners.log").write_text(f"trains\n[learner] error: no actor\n{OVER}")
    for name in ("actor-0", "actor-1"):
        states[name] = _state(name, f"[{name.replace('-', ' ')}] error: no map", "  step.py")
    states["actor-2"] = _state("actor-2", "[actor 2] error: no licence")
    states |= {name: _state(name) for name in ("actor-3", "actor-4")}
    states["learners"] = _state("learners", "[learner] error: no actor")
    follower._print_news()
    assert capsys.readouterr().out == "trains\n[learner] error: no actor\n"
    assert [message.split("\n", 1)[1] for message in said] == [
        "    [actor 0] error: no map\n      step.py\n  it ends; log: /actor-0.log",
        "    its lines are the same as those of actor-0\n  it ends; log: /actor-1.log",
        "    [actor 2] error: no licence\n  it ends; log: /actor-2.log",
        "  it ends; log: /actor-3.log",
        "  it ends; log: /actor-4.log",
        "    its lines are above\n  it ends; log: /learners.log",
    ]
