"""The compose files: they follow the specification, and their commands work."""

import json
import os
import shutil
import signal
import subprocess
import sys

import container
import dockerfile
import pytest
import yaml
from container import Container
from processes import ROOT, needs_horovod, run

from impala_mm.config import command_line
from impala_mm.config.settings import Config

DOCKER = ROOT / "docker"
# The keys of the compose specification that we use.
_KEYS = set(
    "image hostname init restart shm_size stop_signal stop_grace_period command build deploy "
    "volumes".split()
)


def _merged(name, over):
    """Merge two files as compose does: mappings key by key; other values are replaced."""
    both = isinstance(name, dict) and isinstance(over, dict)
    if not both:
        return over
    return name | {key: _merged(name.get(key), value) for key, value in over.items()}


def _compose(*names):
    found = {}
    for name in names:
        found = _merged(found, yaml.safe_load((DOCKER / name).read_text()))
    return found


CPU, GPU = ("compose.yaml",), ("compose.yaml", "compose.gpu.yaml")
EITHER = pytest.mark.parametrize("names", [CPU, GPU], ids=["cpu", "gpu"])


def _command(service):
    """Return the service's flags; its file of flags is read from this checkout."""
    return [part.replace("=compose.flags", f"={DOCKER}/compose.flags") for part in service]


@EITHER
def test_compose_files_follow_the_specification(names):
    compose = _compose(*names)
    assert {key for key in compose if not key.startswith("x-")} == {"name", "services", "volumes"}
    for service in compose["services"].values():
        assert service.keys() <= _KEYS
        assert all(isinstance(part, str) for part in service["command"])
        assert service["stop_grace_period"] if "stop_signal" in service else True
        build = service["build"]
        assert set(build) <= {"context", "dockerfile", "args"}
        context = (DOCKER / build["context"]).resolve()
        assert context == ROOT
        image = context / build["dockerfile"]
        declared = {
            i.text.partition("=")[0] for i in dockerfile.instructions(image) if i.name == "ARG"
        }
        assert set(build.get("args", {})) <= declared
        made = next(i.text for i in dockerfile.stages(image)[""] if i.name == "RUN")
        for volume in service["volumes"]:
            source, target, *mode = volume.split(":")
            if source.startswith("."):
                assert (DOCKER / source).is_file()
                assert mode == ["ro"]
            else:
                assert source in compose["volumes"]
                assert f"{target} " in f"{made} ", "a volume is its folder's owner's: impala's"


def test_gpus_are_asked_for_only_by_their_own_file():
    assert "deploy" not in _compose(*CPU)["services"]["learners"]
    learners = _compose(*GPU)["services"]["learners"]
    (device,) = learners["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert learners["build"]["args"] == {"DEVICE": "gpu"}
    assert learners["command"] == _compose(*CPU)["services"]["learners"]["command"]


def test_two_learners_and_three_actors_are_told_of_each_other():
    services = _compose(*CPU)["services"]
    told = {}
    for name, service in services.items():
        (told[name],), _ = command_line.parse(["", *_command(service["command"])], "", Config)
    learners = told.pop("learners")
    assert (learners.num_learners, learners.num_actors, learners.job_name) == (2, 0, "")
    hosts = [address.split(":")[0] for address in learners.learner_hosts.split(",")]
    assert hosts == [services["learners"]["hostname"]] * 2
    assert [actor.task for actor in told.values()] == [0, 1, 2]
    for actor in told.values():
        assert actor.job_name == "actor"
        assert actor.level_name == learners.level_name
        assert actor.learner_hosts == learners.learner_hosts


@pytest.mark.slow
def test_what_compose_starts_is_valid():
    command = _command(_compose(*CPU)["services"]["learners"]["command"])
    command = [part for part in command if not part.startswith("--logdir")]
    code, printed = run(sys.executable, "experiment.py", "--validate", *command)
    assert code == 0, printed
    assert printed.startswith("valid: CartPole-v1")


@pytest.fixture
def network():
    """Yield the name of a network for the containers, in which the learners' ports are free."""
    container.needed()
    if not shutil.which("ip"):
        pytest.skip("needs iproute2")
    name = f"compose{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True)
    if made.returncode:
        pytest.skip("no network namespaces here")
    subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
    yield name
    subprocess.run(["ip", "netns", "del", name], check=False)


def _start(name, service, folder, network):
    """Start a service's container; its volumes are folders that all containers share."""
    volumes = {}
    for volume in service["volumes"]:
        source, target, *_ = volume.split(":")
        there = DOCKER / source if source.startswith(".") else folder / source
        if not source.startswith("."):
            there.mkdir(exist_ok=True)
        volumes[str(there)] = target
    image = service["image"].partition(":")[0].removeprefix("impala_mm-")
    (folder / name).mkdir()
    return Container(
        image, folder / name, *service["command"], volumes=volumes, net=network, names="learners"
    )


@needs_horovod
@pytest.mark.slow
def test_what_compose_starts_trains_saves_when_stopped_and_goes_on(network, tmp_path):
    """Start all containers of compose.yaml without an engine: files, user, command and volumes."""
    services = _compose(*CPU)["services"]
    rows = tmp_path / "runs" / "compose" / "metrics.jsonl"
    frames = 0
    for turn in ("first", "second"):
        folder = tmp_path / turn
        folder.mkdir()
        for shared in ("runs", "token"):
            (tmp_path / shared).mkdir(exist_ok=True)
            (folder / shared).symlink_to(tmp_path / shared)
        started = {name: _start(name, each, folder, network) for name, each in services.items()}
        learners = started["learners"].process
        learners.until(r"\[learner 0\] [1-9][0-9,]* frames", 90)
        number = getattr(signal, services["learners"]["stop_signal"])
        started["learners"].signal(number)
        assert learners.wait(60) == 0, learners.printed()
        for actor in ("actor-0", "actor-1", "actor-2"):
            assert started[actor].process.process.poll() is None, started[actor].process.printed()
            started[actor].signal(signal.SIGTERM)
            assert started[actor].process.wait(20) == 143
        last = json.loads(rows.read_text().splitlines()[-1])
        assert last["frames"] > frames
        assert last["steps/learner1"] > 0
        frames = last["frames"]
    token = tmp_path / "token" / "token"
    assert (token.stat().st_uid, token.stat().st_mode & 0o777) == (1000, 0o600)
