"""Training in the kernel of a notebook that is interrupted and killed, and in spawned processes."""

import os
import signal
import sys
import time

import pytest
from jupyter_client.manager import start_new_kernel
from processes import ROOT, await_end_in, run

pytestmark = pytest.mark.slow

PLAYS = """
run = impala_mm.train("catch", num_actors=1, logdir="run", stop_at_return=2)
before = [*run.metrics().get("frames", [0])][-1]
while run.is_running and [*run.metrics().get("frames", [0])][-1] <= before:
    time.sleep(0.2)
assert run.is_running, run.output
"""
# Cells that fail, and the errors that they raise.
MISTAKES = [
    ("impala_mm.train('catch', logdir='run')", "BadSettings", "a run that you started here is"),
    ("impala_mm.train(Locked)", "BadEnvironment", "Locked cannot be passed to the actors"),
    ("impala_mm.train('catch', batchsize=3)", "BadSettings", "did you mean --batch_size?"),
    ("impala_mm.load_policy('cartpol')", "Missing", "did you mean cartpole?"),
    ("impala_mm.train('CartPole-v1', preset='atari-ppo').wait()", "BadSettings", "and CartPole-v1"),
    ("impala_mm.train(Raises).wait()", "BadSettings", "making it raised RuntimeError: no licence"),
]
CLASSES = """
import impala_mm, threading, time

class Locked:
    lock = threading.Lock()

class Raises:
    def __init__(self):
        raise RuntimeError("no licence")
"""


class Notebook:
    """A kernel, and the cells that a user runs in it."""

    def __init__(self, folder):
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self.manager, self.client = start_new_kernel(cwd=str(folder), env=environment)

    def run(self, cell):
        """Run a cell; return the name and the text of the error that it raised, or nothing."""
        reply = self.client.execute_interactive(cell, timeout=280, output_hook=lambda _: None)
        content = reply["content"]
        return (content["ename"], content["evalue"]) if content["status"] == "error" else None

    def begin(self, cell):
        """Begin a cell, and return once the kernel runs it."""
        self.client.execute(cell)
        while self.client.get_iopub_msg(timeout=60)["msg_type"] != "execute_input":
            pass
        time.sleep(1)

    def reply(self):
        return self.client.get_shell_msg(timeout=280)["content"]


@pytest.fixture
def notebook(tmp_path):
    made = Notebook(tmp_path)
    yield made
    made.client.stop_channels()
    made.manager.shutdown_kernel(now=True)


def test_mistakes_interrupts_and_a_killed_kernel_leave_no_process(notebook, tmp_path):
    assert notebook.run(CLASSES) is None
    assert notebook.run(PLAYS) is None
    for cell, error, said in MISTAKES:
        name, text = notebook.run(cell)
        assert name == error, text
        assert said in text
    assert notebook.run("assert run.is_running") is None
    notebook.begin("run.wait()")
    notebook.manager.interrupt_kernel()
    assert notebook.reply()["ename"] == "KeyboardInterrupt"
    assert notebook.run("assert not run.is_running") is None
    await_end_in(tmp_path)
    (saved,) = (tmp_path / "run" / "checkpoints").glob("[0-9]*")
    assert notebook.run(PLAYS) is None, "it is resumed"
    os.kill(notebook.manager.provisioner.process.pid, signal.SIGKILL)
    await_end_in(tmp_path)
    assert max((tmp_path / "run" / "checkpoints").glob("[0-9]*")) > saved
    assert {path.name for path in (tmp_path / "runs").iterdir()} == set(), "refused runs"


SPAWNS = """
import multiprocessing, threading
import impala_mm
from test_from_python import Sign as Base

class Sign(Base):
    pass

def train():
    run = impala_mm.train(Sign, num_actors=1, logdir="run", max_seconds=3)
    print([*run.wait().metrics()["frames"]][-1] > 0)

def in_thread():
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=in_thread)
    process.start()
    process.join()
"""


def test_a_thread_of_a_spawned_process_trains_on_a_class_of_the_script(tmp_path):
    (tmp_path / "script.py").write_text(SPAWNS)
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests" / "helpers")))
    code, printed = run(sys.executable, "script.py", cwd=tmp_path, limit=200, PYTHONPATH=paths)
    assert code == 0, printed
    assert printed.splitlines()[-1] == "True", printed
    await_end_in(tmp_path)
