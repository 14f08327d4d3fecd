"""Users' algorithms: what is wrong with a module is named, and each process says its role."""

import sys

import pytest

from impala_mm.algorithms import agent
from impala_mm.algorithms.interface import Role, Setup
from impala_mm.algorithms.make import make_algorithm
from impala_mm.config.settings import Config
from impala_mm.environments.make import level_spec
from impala_mm.records import saved_variables
from tests.helpers import in_process

BASE = "from impala_mm.algorithms.interface import Algorithm\nclass A(Algorithm):\n"
USERS = """
from impala_mm.algorithms.impala.algorithm import Impala
got = []
def make({}):
    got.append({})
    made = Impala({}, {})
    return made
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return a function that writes the module of --algorithm=own_one and returns its path."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)

    def write(text):
        (tmp_path / "own_one.py").write_text(text)
        return tmp_path / "own_one.py"

    yield write
    for name in ("own_one", "own_one_settings"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "own_one ({}) defines no function make(config, environment, setup)"),
        ("import nosuch", "own_one was found at {}, but cannot be imported, since it raises Mod"),
        (
            "def make(config, environment):\n    return helper()\n\ndef helper():\n    1 / 0",
            "make of own_one ({}) raises ZeroDivisionError: division by zero",
        ),
        (
            "def make(config, environment):\n    pass",
            "make of own_one ({}) returns None, which is no algorithm: let its class inherit",
        ),
        (
            f"{BASE}    unroll = variables = 1\n    def update(self): pass\n"
            "def make(config, environment):\n    return A()",
            "make of own_one ({}) returns an A without initial_state, act and judge: impala_mm/",
        ),
        (
            f"{BASE}    unroll = variables = initial_state = judge = update = act = 1\n"
            "def make(config, environment):\n    return A()",
            "make of own_one ({}) returns an A whose initial_state, act, judge and update are no ",
        ),
        (
            f"{BASE}    unroll = variables = 1\n"
            "    def act(self, entry, state, exploration, environment): pass\n"
            "    initial_state = judge = update = act\n"
            "def make(config, environment):\n    return A()",
            "make of own_one ({}) returns an A whose act must take (entry, ",
        ),
        (
            "def make(config, environment, role):\n    pass",
            "make of own_one ({}) takes role: let it take (config, environment, setup), and read ",
        ),
        (
            f"{BASE}    unroll = variables = 1\n"
            "    def act(self, entry, state, exploration): pass\n"
            "    initial_state = judge = update = act\n"
            "def make(config, environment):\n    return A()",
            "make of own_one ({}) returns an A whose unroll is an int, not an UnrollSpec",
        ),
    ],
)
def test_what_is_wrong_with_a_users_module_is_one_sentence_after_their_own_frames(
    module, text, said, capsys
):
    path = module(text)
    with pytest.raises(SystemExit) as ended:
        agent.make_agent(Config(algorithm="own_one"), 0)
    assert ended.value.code == 2
    *frames, last = capsys.readouterr().err.splitlines()
    assert last.startswith(f"error: --algorithm=own_one: {said.format(path)}")
    if "raises" in said:
        assert f'File "{path}", line 1' in frames[1] or f'File "{path}", line 2' in frames[1]
        assert not any("impala_mm" in line for line in frames)
    else:
        assert not frames


@pytest.mark.parametrize(
    ("parameters", "passed", "role"),
    [
        ("a, b, setup=None", "setup.role", Role.EVALUATOR),
        ("a, b, *more", "more[0].role", Role.EVALUATOR),
        ("a, b, for_what", "for_what.role", Role.EVALUATOR),
        ("a, b", "None", None),
        ("a, b, size=3", "size", 3),
    ],
)
def test_make_gets_the_setup_if_it_takes_one(module, parameters, passed, role):
    module(USERS.format(parameters, passed, "a", "b"))
    config = Config(algorithm="own_one")
    make_algorithm(config, level_spec("catch"), Setup(Role.EVALUATOR))
    assert sys.modules["own_one"].got == [role]


def test_rounds_that_the_settings_of_a_users_algorithm_do_not_have_are_refused(module, capsys):
    """Settings of its own count actors; an algorithm without any has those of all algorithms."""
    path = module(
        "from impala_mm.algorithms.impala.algorithm import Impala\ndef make(config, environment):\n"
        "    made = Impala(config, environment)\n    made.rounds = True\n    return made\n"
    )
    settings = path.with_name("own_one_settings.py")
    text = (
        "import dataclasses\nfrom impala_mm.algorithms.impala.settings import ImpalaSettings\n"
        "@dataclasses.dataclass(frozen=True)\nclass Settings(ImpalaSettings):\n    "
    )
    for line, is_refused in (("", False), ("rounds = False", True), ("rounds = True", False)):
        if line:
            settings.write_text(f"{text}{line}\n")
        for name in ("own_one", "own_one_settings"):
            sys.modules.pop(name, None)
        config = Config.of_algorithm("own_one")(level_name="catch", algorithm="own_one")
        if not is_refused:
            assert make_algorithm(config, level_spec("catch")).rounds
            continue
        with pytest.raises(SystemExit):
            make_algorithm(config, level_spec("catch"))
        assert "makes an algorithm with rounds = True, and its Settings have rounds = False" in (
            capsys.readouterr().err
        )


def test_only_a_learner_has_an_optimizer_and_all_roles_act_by_the_same_variables():
    config = Config(level_name="catch")
    made = {role: agent.make_agent(config, 0, role=role) for role in Role}
    for role, each in made.items():
        variables = each.algorithm.variables
        assert (len(variables.carried) > len(variables.trained)) == (role is Role.LEARNER)
        assert each.layout.digest == made[Role.LEARNER].layout.digest
        weights = saved_variables.named_for_acting(variables)
        shapes = {name: v.shape for name, v in weights.items()}
        learners = saved_variables.named(made[Role.LEARNER].algorithm.variables)
        assert all(learners[name].shape == shape for name, shape in shapes.items())


@pytest.mark.parametrize(
    ("change", "recorded"),
    [("", "MLPAgent"), ("made.network_name = 'Own'", "Own"), ("del made.network_name", "auto")],
)
def test_the_network_of_a_users_algorithm_is_recorded_as_what_it_says(module, change, recorded):
    text = USERS.format("a, b", "None", "a", "b")
    module(text.replace("    return", f"    {change}\n    return"))
    made = agent.make_agent(Config(algorithm="own_one"), 0)
    assert made.made_of["--agent_name"] == recorded
    shared = made.identity["shared"]
    assert shared["network (--agent_name and the flags of networks)"] == recorded


@pytest.mark.parametrize(
    ("name", "level"),
    [("ppo", "CartPole-v1"), ("dqn", "CartPole-v1"), ("sac", "Pendulum-v1")],
)
def test_actors_of_other_algorithms_hold_no_targets_and_no_optimizer(name, level):
    learner, actor = (
        in_process.made(
            name, level, role=role, normalize_observations=False, normalize_rewards=False
        )[0]
        for role in (Role.LEARNER, Role.ACTOR)
    )
    for group in ("trained", "acting"):
        shapes = [[v.shape for v in getattr(a.variables, group)] for a in (learner, actor)]
        assert shapes[0] == shapes[1]
    # A decaying share of random actions; a temperature, and whether actions are random.
    assert len(actor.variables.carried) == {"ppo": 0, "dqn": 1, "sac": 2}[name]
