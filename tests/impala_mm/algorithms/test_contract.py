"""What a user's algorithm returns is compared with what it declares, while it is traced."""

import sys

import pytest

from impala_mm.actor.acting import Act
from impala_mm.algorithms import agent, contract
from impala_mm.algorithms.impala import algorithm as impala
from impala_mm.algorithms.interface import Role
from impala_mm.config import user_modules
from impala_mm.config.settings import Config
from impala_mm.data import batches
from impala_mm.distributed.group import SingleLearner
from impala_mm.jobs import validate
from impala_mm.learner.train_step import TrainStep
from impala_mm.runtime import lifecycle

USERS = """
import tensorflow as tf
from impala_mm.algorithms.impala import algorithm as impala

class Own(impala.Impala):
    def {method}(self, {arguments}):
        {first} = super().{method}({arguments})
        {rest}

def make(config, environment, setup):
    made = Own(config, environment, setup)
    made.count = tf.Variable(0.0, name="count")
    return made
"""
ACT = {
    "a, s, e": "",
    "return tf.cast(a, tf.float32), s, e": ("actions", "float32 [B]", "int32 [B]"),
    "return a[:, tf.newaxis], s, e": ("actions", "int32 [B, 1]", "int32 [B]"),
    "return a, s, e[:, :2]": ("extras", "float32 [B, 2]", "float32 [B, 3]"),
    "return a, s, (e, e)": ("extras", "a tuple of 2", "unroll.step.extras"),
    "return a": ("int32 [3]", "(actions, core state, extras)"),
    "return a, tf.nest.map_structure(lambda x: x[:, :5], s), e": (
        *("core state", ".hidden", "float32 [B, 5]", "float32 [B, 64]"),
    ),
    "return (a, s, e) if tf.reduce_sum(a) > 1 else (a, s, e)": ("tf.cond", "own_one.py:8"),
    "return a, s, e / tf.ones([2, 2])": ("raises", "own_one.py:8", "[3,3]", "[2,2]"),
}
UPDATE = {
    "return m": ("a dict of", "(metrics, priorities [B])"),
    "return p, m": ("metrics", "float32 [4]", "a dict of numbers"),
    "return m | {'mine': p}, p": ("'mine'", "float32 [4]", "tf.reduce_mean"),
    "return m, p[:2]": ("priorities", "float32 [2]", "float32 [B]"),
    "return (m, p) if p[0] > 0 else (m, p)": ("tf.cond", "own_one.py:8"),
    "return m, p @ p": ("raises", "own_one.py:8"),
    "self.count.assign_add(p[0]); return m, p": ("assigns count, of no group",),
}
JUDGE = {
    "return o._replace(value=o.policy)": ("value", "float32 [2, 3]", "float32 [B]"),
    "return tuple(o)": ("a tuple of 4", "PolicyOutput"),
    "return o if o.value[0] > 0 else o": ("tf.cond", "own_one.py:8"),
}


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return a function that writes the module of --algorithm=own_one."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)

    def write(method, first, rest):
        arguments = "entry, state, exploration" if method == "act" else "*args"
        text = USERS.format(method=method, arguments=arguments, first=first, rest=rest)
        (tmp_path / "own_one.py").write_text(text)

    yield write
    sys.modules.pop("own_one", None)


def _config(**settings):
    settings = {"algorithm": "own_one", "level_name": "catch"} | settings
    return Config.of_algorithm(settings["algorithm"])(**settings)


def _made(role, **settings):
    return agent.make_agent(_config(**settings), None, role=role)


def _act(**settings):
    Act(_made(Role.ACTOR, **settings).algorithm, 3)


@pytest.mark.parametrize("rest", [rest for rest in ACT if ACT[rest]])
def test_what_act_returns_is_compared_leaf_by_leaf_with_what_is_declared(module, rest):
    module("act", "a, s, e", rest)
    with pytest.raises(contract.AlgorithmMistake) as caught:
        _act(agent_name="MLPLSTMAgent", mlp_sizes="8", lstm_size=64)
    said = str(caught.value)
    assert said.startswith("act of own_one.Own ")
    assert all(part in said for part in ACT[rest]), said


@pytest.mark.parametrize("rest", UPDATE)
def test_what_update_returns_and_assigns_is_checked(module, rest):
    module("update", "m, p", rest)
    made = _made(Role.LEARNER)
    step = TrainStep(made.algorithm, SingleLearner(), _config(), made.layout.values)
    with pytest.raises(contract.AlgorithmMistake) as caught:
        step.trace(batches.specs(made.algorithm.unroll, 4))
    said = str(caught.value)
    assert said.startswith("update of own_one.Own ")
    assert all(part in said for part in UPDATE[rest]), said


@pytest.mark.parametrize("method", ["judge", "judge_unroll"])
@pytest.mark.parametrize("rest", JUDGE)
def test_what_the_judging_methods_return_is_checked(module, method, rest):
    module(method, "o", rest)
    with pytest.raises(contract.AlgorithmMistake) as caught:
        contract.trace_judges(_made(Role.EVALUATOR).algorithm)
    said = str(caught.value)
    assert said.startswith(f"{method} of own_one.Own ")
    parts = JUDGE[rest]
    if method == "judge_unroll" and parts[-1].startswith("float32"):
        parts = parts[0], parts[-1].replace("[B", "[T+1, B")
    assert all(part in said for part in parts), said


def test_an_act_that_reads_what_actors_do_not_receive_is_refused():
    made = _made(Role.ACTOR, algorithm="impala").algorithm
    left_out, *acting = made.variables.acting
    made.variables = made.variables._replace(acting=acting)
    with pytest.raises(contract.AlgorithmMistake, match=r"reads .*: add it to acting"):
        Act(made, 2)
    assert left_out in [*made.variables.trained, *made.variables.carried]


def test_an_error_of_our_own_code_keeps_its_traceback(monkeypatch):
    ours = {"__name__": "impala_mm.algorithms.faulty"}
    exec("def act(self, entry, state, exploration):\n    1 / 0", ours)
    monkeypatch.setattr(impala.Impala, "act", ours["act"])
    with pytest.raises(ZeroDivisionError):
        _act(algorithm="impala")


@pytest.fixture
def answer(monkeypatch, capsys):
    """Return a function that runs --validate and returns (exit code, output)."""
    monkeypatch.setattr(lifecycle, "load_tensorflow", lambda *threads: None)

    def run(**settings):
        with pytest.raises(SystemExit) as ended, user_modules.mistakes_refused():
            validate.run(_config(**settings), list(settings))
        out, err = capsys.readouterr()
        return ended.value.code, out + err

    return run


@pytest.mark.parametrize(
    ("method", "first", "rest", "said"),
    [
        ("act", "a, s, e", "return tf.cast(a, tf.int64), s, e", "error: act of own_one.Own "),
        ("judge_unroll", "o", "return o.value", "error: judge_unroll of own_one.Own "),
        ("offline_update", "m, p", "return m", "error: offline_update of own_one.Own "),
    ],
)
def test_validate_refuses_it_in_one_sentence(module, answer, method, first, rest, said):
    module(method, first, rest)
    code, printed = answer()
    assert code == 2, printed
    assert printed.startswith(said)
    assert printed.count("\n") == 1


def test_validate_executes_none_of_the_functions(module, answer, tmp_path):
    write = f"tf.py_function(lambda: open({str(tmp_path / 'ran')!r}, 'w').close(), [], [])"
    module("update", "m, p", f"{write}; return m, p")
    code, printed = answer()
    assert code == 0, printed
    assert not (tmp_path / "ran").exists()


def test_validate_says_what_it_cannot_trace_without_data(module, answer):
    module("update", "m, p", "return m\n    def source(self, fresh): return fresh")
    code, printed = answer()
    assert code == 0, printed
    assert "update was not traced" in printed
    assert "batch_shape" in printed
    module("update", "m, p", "return m\n    source, batch_shape = print, (3, 8)")
    sys.modules.pop("own_one")
    code, printed = answer()
    assert code == 2, printed
    assert "update of own_one.Own returns a dict" in printed
