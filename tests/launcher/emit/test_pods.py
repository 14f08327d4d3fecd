"""The objects for Kubernetes: what they ask for, and what is refused before anything is printed."""

import re
import stat
import subprocess
from pathlib import Path

import pytest
import yaml
from cluster import Cluster
from processes import ROOT

from impala_mm.config.settings import Config
from impala_mm.transport.tls import Credentials
from launcher.emit import EMITTERS
from launcher.plan.process_plan import PlanError
from launcher.plan.request import Request
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import Worker

ENGINES = ("jobset", "mpijob", "trainjob")
ROWS = [
    *(Worker(i, "learner", f"gpu{i}", cores=8, memory="16Gi", gpus=1) for i in (2, 3, 4)),
    Worker(5, "actor", "cpu1", count=3, num_envs=8),
    Worker(6, "actor", "cpu2", num_envs=16, learner=1),
    Worker(7, "actor", "cpu3", count=2, num_envs=8),
    Worker(8, "evaluator", "cpu3", setup="module load 'a b'; cd $HOME"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The user's folder, to which the token's files are written."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _emit(engine, rows=ROWS, name="try", flags=None, **config):
    """Return the objects by kind, and the notes."""
    options = {"container_image": ("team/rl:1.0",), "volume_claim": "runs"} | config
    given = {"level_name": "catch"} | (flags or {})
    request = Request(LauncherConfig(**options), Config(**given), [*options, *given])
    text, notes = EMITTERS[engine](name, rows, request)
    objects = list(yaml.safe_load_all(text))
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}, notes


def _jobs(objects):
    """Return the specification of each Job, by its name."""
    found = {n: each["spec"] for (kind, n), each in objects.items() if kind == "Job"}
    for kind, name in objects:
        if kind in ("JobSet", "TrainingRuntime"):
            spec = objects[kind, name]["spec"]
            spec = spec if kind == "JobSet" else spec["template"]["spec"]
            found |= {each["name"]: each["template"]["spec"] for each in spec["replicatedJobs"]}
    return found


def _container(job):
    (container,) = job["template"]["spec"]["containers"]
    return container


def test_rows_with_equal_needs_are_one_replicated_job_and_learners_ask_for_gpus():
    objects, _ = _emit(
        "jobset",
        node_selector=("zone=a", "learner=gpu=a100"),
        container_image=("registry:5000/rl:1", "actor=slim:2"),
        queue="big",
        namespace="team",
    )
    jobset = objects["JobSet", "try"]
    assert jobset["metadata"]["namespace"] == "team"
    assert jobset["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "big"
    assert jobset["spec"]["successPolicy"]["targetReplicatedJobs"] == ["learners"]
    jobs = _jobs(objects)
    assert {name: job["completions"] for name, job in jobs.items()} == {
        **{"learners": 1, "learners-hosts": 2},
        **{"actors": 5, "actors-2": 1, "evaluators": 1},
    }
    for name in ("learners", "learners-hosts"):
        needs = _container(jobs[name])["resources"]
        assert needs["requests"] == {"cpu": 8, "memory": "16Gi"}
        assert needs["limits"] == {"memory": "16Gi", "nvidia.com/gpu": 1}
        spec = jobs[name]["template"]["spec"]
        assert spec["nodeSelector"] == {"zone": "a", "gpu": "a100"}
    assert _container(jobs["actors"])["resources"] == {"requests": {"cpu": 1}}
    images = {name: _container(job)["image"] for name, job in jobs.items()}
    assert {images["actors"], images["actors-2"]} == {"slim:2"}
    assert images["learners"] == images["evaluators"] == "registry:5000/rl:1"
    # All learners' names, in the order of ranks, are those that JobSet gives their pods.
    hosts = ["try-learners-0-0", "try-learners-hosts-0-0", "try-learners-hosts-0-1"]
    addresses = ",".join(f"{host}.try:8001" for host in hosts)
    for job in (jobs["learners"], jobs["actors"]):
        assert f"--learner_hosts={addresses}" in _container(job)["args"]
    words = _container(jobs["learners"])["args"]
    assert [words[i + 1] for i, word in enumerate(words) if word == "--host"] == [
        f"{host}.try" for host in hosts
    ]
    # The project is where the images have it.
    for image in ("learner", "actor"):
        file = (ROOT / "docker" / f"{image}.Dockerfile").read_text()
        assert f"WORKDIR {_container(jobs[f'{image}s'])['workingDir']}\nUSER 1000" in file
        assert jobs[f"{image}s"]["template"]["spec"]["securityContext"]["fsGroup"] == 1000
    # A shell replaces $, and Kubernetes only what is doubled.
    assert "module load 'a b'; cd $$HOME" in _container(jobs["evaluators"])["args"][2]


def test_learners_that_crash_are_limited_and_a_mistake_ends_the_run(folder):
    del folder
    jobs = _jobs(_emit("jobset", max_restarts=7)[0])
    learners = jobs.pop("learners")
    assert learners["template"]["spec"]["restartPolicy"] == "Never"
    assert learners["backoffLimit"] == 7
    ignore, fail = learners["podFailurePolicy"]["rules"]
    assert ignore == {
        "action": "Ignore",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    assert (fail["action"], fail["onExitCodes"]["values"]) == ("FailJob", [2])
    for job in jobs.values():
        assert job["template"]["spec"]["restartPolicy"] == "OnFailure"
        assert job["backoffLimit"] > 1e6


def test_the_run_has_a_token_that_only_the_secret_and_its_files_have(folder, monkeypatch):
    monkeypatch.setenv("OF_SHELL", "hunter2")
    env = ("OF_SHELL", "WANDB_API_KEY=hunter3", "PLAIN=$(PATH)")
    objects, notes = _emit("jobset", env=env)
    text = yaml.safe_dump(objects)
    files = {job: folder / "try-token" / job for job in ("learner", "actor")}
    contents = {job: file.read_text() for job, file in files.items()}
    secrets = ["hunter2", "hunter3", *(c.splitlines()[0] for c in contents.values()), "-----BEGIN"]
    assert not any(secret in text + "".join(notes) for secret in secrets)
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files.values())
    parsed = {job: Credentials.parse(content) for job, content in contents.items()}
    assert parsed["learner"].token == parsed["actor"].token
    assert contents["learner"] != contents["actor"], "actors have no learner's certificate"
    command = next(note for note in notes if "kubectl create secret generic try-token" in note)
    assert "--from-file=try-token" in command
    assert '--from-literal=WANDB_API_KEY="$WANDB_API_KEY"' in command
    for name, job in _jobs(objects).items():
        (secret,) = [v["secret"] for v in job["template"]["spec"]["volumes"] if "secret" in v]
        key = "learner" if name.startswith("learners") else "actor"
        assert [item["key"] for item in secret["items"]] == [key]
    env = {each["name"]: each for each in _container(_jobs(objects)["actors"])["env"]}
    assert env["OF_SHELL"]["valueFrom"]["secretKeyRef"] == {"name": "try-token", "key": "OF_SHELL"}
    assert env["PLAIN"]["value"] == "$$(PATH)"

    # On request the text has them; a second call has the same token.
    objects, notes = _emit("jobset", emit_secret=True, env=("WANDB_API_KEY=hunter3",))
    assert objects["Secret", "try-token"]["stringData"] == contents | {"WANDB_API_KEY": "hunter3"}
    assert not any("create secret" in note for note in notes)


def test_learners_of_several_pods_have_certificates_for_mpirun_without_encryption(folder):
    single = [ROWS[0], ROWS[3]]
    for engine, rows, has in (
        ("mpijob", single, True),
        ("trainjob", ROWS, True),
        ("jobset", single, False),
    ):
        _emit(engine, rows, flags={"transport_security": "none"})
        assert ("PRIVATE KEY" in (folder / "try-token" / "learner").read_text()) is has
    for job in ("learner", "actor"):
        (folder / "try-token" / job).unlink()
    (folder / "try-token").rmdir()
    (folder / "try-token").touch()
    with pytest.raises(PlanError, match="is a file: rename it"):
        _emit("jobset")


def test_a_folder_without_parents_is_in_runs_and_an_image_may_have_tag_and_digest():
    image = f"team/rl:1.0@sha256:{'0' * 64}"
    job = _jobs(_emit("jobset", flags={"logdir": "pong"}, container_image=(image,))[0])["learners"]
    container = _container(job)
    assert container["image"] == image
    assert "--logdir=/runs/pong" in container["args"]
    assert {each["name"]: each["mountPath"] for each in container["volumeMounts"]}[
        "runs"
    ] == "/runs"


@pytest.mark.parametrize(
    ("does", "code"),
    [
        ("echo '{\"ended\": true}' >$HOSTS", 0),
        ("true", 1),  # mpirun, having lost a learner
        ("exit 2", 2),
        ("touch $STATE/stopped; echo '{\"ended\": true}' >$HOSTS", 143),  # a pod is evicted
    ],
)
def test_learners_succeed_only_if_they_say_that_the_run_has_ended(does, code, folder):
    jobs = _jobs(_emit("jobset", flags={"logdir": f"{folder}/run"})[0])
    environment = {each["name"]: each.get("value") for each in _container(jobs["learners"])["env"]}
    hosts, state = environment["IMPALA_MM_LEARNER_HOSTS"], folder / "state"
    (folder / "run").mkdir()
    state.mkdir()
    (folder / "token").write_text("x")
    Path(hosts).write_text('{"ended": true}')  # of an earlier start
    script = _container(jobs["learners"])["command"][2]
    script = script.replace("/run/secrets/impala_mm", str(folder)).replace("/dev/shm", str(state))
    script = re.sub(".*getent.*\n", "", script)
    does = does.replace("$HOSTS", hosts).replace("$STATE", str(state))
    ran = subprocess.run(["sh", "-c", script, "learners", "sh", "-c", does], check=False)
    assert ran.returncode == code


def test_an_mpijob_is_as_its_controller_accepts_it():
    objects, notes = _emit("mpijob")
    spec = objects["MPIJob", "try"]["spec"]
    assert spec["slotsPerWorker"] == 1
    assert spec["runPolicy"]["cleanPodPolicy"] in ("None", "Running", "All")
    assert spec["sshAuthMountPath"] == "/root/.ssh"
    assert spec["mpiImplementation"] == "OpenMPI"
    assert spec["launcherCreationPolicy"] == "AtStartup"
    assert spec["runLauncherAsWorker"] is False
    launcher, worker = (spec["mpiReplicaSpecs"][role] for role in ("Launcher", "Worker"))
    assert (launcher["replicas"], worker["replicas"]) == (1, 3)
    for each in (launcher, worker):
        assert each["restartPolicy"] in ("Never", "OnFailure")
        assert "restartPolicy" not in each["template"]["spec"], "the operator warns of it"
    assert "limits" not in _container(launcher)["resources"], "mpirun alone needs no GPU"
    words = _container(launcher)["args"]
    assert [words[i + 1] for i, word in enumerate(words) if word == "--host"] == [
        f"try-worker-{i}.try" for i in range(3)
    ]
    assert _container(worker)["args"][-2:][0] == "try-launcher.try"
    assert {name for kind, name in objects if kind == "Job"} == {
        f"try-{pods}" for pods in ("actors", "actors-2", "evaluators")
    }
    assert any("kubectl delete job" in note for note in notes)
    single, _ = _emit("mpijob", [ROWS[0], ROWS[3]])
    assert single["MPIJob", "try"]["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_core_kinds_are_valid_by_the_published_schemas(engine):
    validate = pytest.importorskip("kubernetes_validate")
    objects, _ = _emit(engine, emit_secret=True, queue="q", node_selector=("a=b",))
    found = [{"kind": "Job", "spec": job} for job in _jobs(objects).values()]
    found += [each for (kind, _), each in objects.items() if kind in ("Job", "Secret")]
    for _, each in objects.items():
        for replica in each["spec"].get("mpiReplicaSpecs", {}).values() if "spec" in each else ():
            found.append({"kind": "Pod", "spec": replica["template"]["spec"]})
    for each in found:
        version = "batch/v1" if each["kind"] == "Job" else "v1"
        complete = {"apiVersion": version, "metadata": {"name": "x"}} | each
        validate.validate(complete, validate.latest_version(), strict=True)


@pytest.mark.parametrize(
    ("engine", "kind", "model"),
    [
        ("jobset", "JobSet", "JobsetV1alpha2JobSet"),
        ("trainjob", "TrainJob", "TrainerV1alpha1TrainJob"),
        ("trainjob", "TrainingRuntime", "TrainerV1alpha1TrainingRuntime"),
    ],
)
def test_kinds_of_kubeflow_keep_every_field_in_its_published_models(engine, kind, model):
    models = pytest.importorskip("kubeflow_trainer_api.models")
    objects, _ = _emit(engine, queue="q", node_selector=("a=b",))
    known = getattr(models, model).from_dict(objects[kind, "try"]).to_dict()

    def check(ours, theirs, path):
        if isinstance(ours, dict):
            for key, value in ours.items():
                assert key in theirs, f"{path} has no {key}"
                check(value, theirs[key], f"{path}.{key}")
        elif isinstance(ours, list):
            for i, (one, other) in enumerate(zip(ours, theirs, strict=True)):
                check(one, other, f"{path}[{i}]")
        else:
            assert ours == theirs, path

    check(objects[kind, "try"], known, kind)


def test_a_trainjob_runs_the_jobset_of_its_runtime():
    objects, _ = _emit("trainjob")
    runtime = objects["TrainingRuntime", "try"]["spec"]
    assert objects["TrainJob", "try"]["spec"]["runtimeRef"]["kind"] == "TrainingRuntime"
    first, *others = runtime["template"]["spec"]["replicatedJobs"]
    labels = first["template"]["metadata"]["labels"]
    assert labels == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    container = _container(first["template"]["spec"])
    assert container.pop("name") == "node", "which a TrainJob may change"
    (jobset, *others_of_jobset) = _emit("jobset")[0]["JobSet", "try"]["spec"]["replicatedJobs"]
    same = _container(jobset["template"]["spec"])
    assert same.pop("name") == "learner"
    assert (container, others) == (same, others_of_jobset)


def test_pods_are_watched_for_as_long_as_processes_here():
    jobs = _jobs(_emit("jobset", stall_secs=60, stop_secs=33)[0])
    probe = _container(jobs["actors"])["livenessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 60
    assert probe["initialDelaySeconds"] == 300, "TensorFlow is loaded first"
    assert jobs["learners"]["template"]["spec"]["terminationGracePeriodSeconds"] > 33
    jobs = _jobs(_emit("jobset", stall_secs=0)[0])
    assert not any("livenessProbe" in _container(job) for job in jobs.values())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"container_image": ()}, "--container_image: name the image of learners"),
        ({"container_image": ("actor=slim:2",)}, "--container_image: name the image of learners"),
        (
            {"container_image": ("team/rl",)},
            "--container_image=team/rl: write the image in small letters, and with its",
        ),
        ({"container_image": ("reg:5000/rl",)}, "--container_image=reg:5000/rl: write the image"),
        ({"container_image": ("a b:1",)}, "--container_image=a b:1: write the image"),
        ({"name": "my_run"}, "--tmux_sess=my_run: Kubernetes takes at most 63 small letters"),
        ({"name": "1st"}, "--tmux_sess=1st: Kubernetes takes"),
        ({"name": "a" * 40}, "learners-hosts-0-1-abcde is too long"),
        ({"container_image": ("team/RL:1",)}, "--container_image=team/RL:1: write the image"),
        ({"namespace": "Team"}, "--namespace=Team: such names in Kubernetes are at most 63"),
        ({"namespace": "a.b"}, "--namespace=a.b: such names in Kubernetes"),
        ({"queue": "a_b"}, "--queue=a_b: such names in Kubernetes"),
        ({"queue": "a" * 64}, "such names in Kubernetes are at most 63 small letters"),
        ({"volume_claim": "a b"}, "--volume_claim=a b: such names in Kubernetes"),
        ({"node_selector": ("gpu",)}, "--node_selector=gpu: write KEY=VALUE"),
        ({"node_selector": ("gpu=a 100",)}, "--node_selector=gpu=a 100: write KEY=VALUE"),
        ({"flags": {"logdir": "/"}}, "--logdir=/: the volume cannot be mounted at /"),
        ({"flags": {"logdir": "/pong"}}, "--logdir=/pong: the volume cannot be mounted at /"),
        ({"flags": {"logdir": "../../x"}}, "--logdir=../../x: the volume cannot"),
        ({"flags": {"logdir": "s3://b/x"}}, "--logdir=s3://b/x: the volume cannot"),
        ({"flags": {"logdir": "/dev/shm/x"}}, "the volume cannot be mounted at /dev/shm"),
        ({"rows": [Worker(2, "learner", "a", workdir="~/x")]}, "workdir ~/x: a container has no"),
        ({"engine": "mpijob", "volume_claim": ""}, "--emit=mpijob: give --volume_claim, by which"),
        ({"rows": [*ROWS, Worker(9, "learner", "x")]}, "row 9: it differs from the first"),
    ],
)
def test_what_kubernetes_refuses_is_refused_in_a_sentence(changes, said, folder):
    with pytest.raises(PlanError, match=re.escape(said)):
        _emit(**{"engine": "jobset"} | changes)
    assert not (folder / "try-token").exists(), "nothing is left behind"


def test_the_frontend_prints_the_objects_alone_and_takes_numbers_for_a_csv(folder):
    user = Cluster(folder)
    image = "--container_image=rl:1"
    code, printed = user.ask("--emit=jobset", "--num_learners=4", "--num_actors=64", image)
    assert code == 0, printed
    assert "note: without --volume_claim, or --mirror, the run's folder is lost" in printed
    text = printed[printed.index("apiVersion") :]
    jobs = _jobs({("JobSet", "impala"): yaml.safe_load(text)})
    assert {name: job["completions"] for name, job in jobs.items()} == {
        **{"learners": 1, "learners-hosts": 3, "actors": 64},
    }
    volumes = jobs["learners"]["template"]["spec"]["volumes"]
    assert {"name": "runs", "emptyDir": {}} in volumes, "a folder that the image's user can write"
    assert "num_" not in text, "processes are not told how many there are"
    code, printed = user.ask(user.rows(), "--emit=jobset", "--num_actors=2", image)
    assert (code, "the CSV has the processes" in printed) == (2, True)
    secret = user.csv("learner,a,hunter2", columns="job,ip,ssh_password")
    user.folder.joinpath("workers.csv").chmod(0o600)
    code, printed = user.ask(secret, "--emit=jobset", image)
    assert (code, "has passwords, which --emit=jobset has no use for" in printed) == (2, True)
    assert "hunter2" not in printed
    mirror = "--mirror=s3://me:hunter2@bucket/run"
    code, printed = user.ask("--emit=jobset", "--num_learners=1", "--num_actors=2", image, mirror)
    assert (code, "--mirror has a password in a URL" in printed) == (2, True)
    assert "hunter2" not in printed
    code, printed = user.ask("--emit=slurm", "--num_learners=2", "--num_actors=9")
    assert (code, "--ntasks=9" in printed, "num_" in printed) == (0, True, False)
