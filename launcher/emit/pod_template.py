"""The template of a pod: the container, what it waits for, its probe, its end, and the run's token.

Nothing supervises the process: its output is the pod's log, Kubernetes restarts it, and a probe
looks at its heartbeat. Pods have these files:

    /run/secrets/impala_mm/token    the run's token, from a Secret, which the pod's group can read
    /dev/shm/token                  a copy that its owner alone can read
    /dev/shm/beat...                the heartbeat, and whom the process waits for (`supervise.task`)
"""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from impala_mm.runtime import certificates, run_token
from launcher.emit.pods import (
    LABEL_VALUE,
    NODE_KEY,
    SECRETS,
    STATE,
    Pods,
    check_name,
    choose,
    list_notes,
    logdir,
)
from launcher.plan import process_plan
from launcher.plan.process_plan import PlanError
from launcher.plan.request import Request
from launcher.plan.settings import LauncherConfig
from launcher.supervise.json_files import private
from launcher.supervise.liveness import FIRST_BEAT_FACTOR
from launcher.supervise.programs import PACKAGE
from launcher.supervise.task import (
    HEARTBEAT,
    HOSTS_VARIABLE,
    PORTS_VARIABLE,
    START_VARIABLE,
    WAITS,
)

Object = dict[str, Any]  # of Kubernetes

NAME_LABEL = "app.kubernetes.io/instance"  # all objects of a run have it, with the run's name
_GROUP = 1000  # of the images' user; the pod's group can read the Secret and write to the volume
# A container that is restarted finds the files of the last one.
_BEGIN = f"umask 077\nrm -rf {STATE}/*\ncp {SECRETS}/token {STATE}/token\n"
_READ_NUMBER = "n=$(hostname)\nn=${n##*-}\n"
_AWAIT_NAME = """\
name=$(hostname).{name}
getent hosts "$name" >/dev/null || echo "waits until DNS has this pod's name, $name"
until getent hosts "$name" >/dev/null; do sleep 1; done
"""
# The run has ended if the first learner says so: mpirun exits with code 0 also if it has lost a
# learner, and learners that are evicted save and exit with code 0.
_RUN_MPIRUN = f"""\
rm -f {{hosts}}
"$@" &
echo $! >{STATE}/pid
wait $!
code=$?
[ ! -e {STATE}/stopped ] || exit 143
[ $code != 0 ] || grep -q '"ended": true' {{hosts}} || exit 1
exit $code
"""
_SAVE = f'touch {STATE}/stopped; kill -USR1 "$(cat {STATE}/pid)"; sleep {{seconds}}'
# What a pod does before it is deleted: save; let the others save; test the last checkpoint.
_BEFORE_END = {
    "learners": _SAVE,
    "launcher": _SAVE,
    "learners-hosts": f"until find {STATE} -name '{WAITS}*' | grep -q .; do sleep 1; done",
    "evaluators": "kill -USR1 1; sleep {seconds}",
}
# Whether the process works, or waits for another pod.
_PROBE = f"find {STATE} -name '{WAITS}*' -o -name 'beat*' -newermt '-20 seconds' | grep -q ."
_PROBE_SECONDS = 10


def make_template(name: str, pods: Pods, request: Request, restarts: str = "") -> Object:
    """Return the template of these pods; `restarts`: their restartPolicy, if it is part of it."""
    config, job = request.launcher, pods.row.job
    volumes, mounts = _volumes(name, pods, request)
    selectors = choose("node_selector", config.node_selector, job)
    selector = dict(map(_split_label, selectors))
    spec: Object = {
        **({"restartPolicy": restarts} if restarts else {}),
        "securityContext": {"fsGroup": _GROUP, "fsGroupChangePolicy": "OnRootMismatch"},
        **({"nodeSelector": selector} if selector else {}),
    }
    container: Object = {
        "name": job,
        "image": choose("container_image", config.container_image, job)[-1],
        "command": ["sh", "-c", _script(name, pods, _hosts_file(name, request)), pods.name],
        "args": _words(pods),
        "workingDir": pods.process.workdir,
        "env": _environment(name, pods, request),
        "resources": _resources(pods),
        "volumeMounts": mounts,
    }
    if pods.name in _BEFORE_END:
        seconds = math.ceil(config.stop_secs)
        script = _BEFORE_END[pods.name].format(seconds=seconds)
        spec["terminationGracePeriodSeconds"] = seconds + _PROBE_SECONDS
        container["lifecycle"] = {"preStop": {"exec": {"command": ["sh", "-c", script]}}}
    return {
        "metadata": {"labels": {NAME_LABEL: name}},
        "spec": {**spec, "containers": [container | _probe(pods, config)], "volumes": volumes},
    }


def _hosts_file(name: str, request: Request) -> str:
    """Return the file in which the first learner says that the run has ended.

    It is on the volume, since mpirun may be in another pod.
    """
    return f"{logdir(name, request).parent}/.{name}-learners.json"


def _script(name: str, pods: Pods, hosts: str) -> str:
    """Return what a shell does in the pod before it becomes the process."""
    script = _BEGIN + (_READ_NUMBER if pods.last_word else "")
    if pods.row.job == "learner":  # learners look up each other's names as soon as they start
        script += _AWAIT_NAME.format(name=name)
    if pods.name in ("learners", "launcher"):
        return script + _RUN_MPIRUN.format(hosts=shlex.quote(hosts))
    return f'{script}exec "$@" {pods.last_word}'.rstrip() + "\n"


def _words(pods: Pods) -> list[str]:
    """Return the words of the process's command."""
    own, (program, *words) = pods.process.installation, pods.process.command
    if program == PACKAGE:
        words = ["-ES", "-m", f"{PACKAGE}.{words[0]}", *words[1:]]
        program = own.python
    return [_escape(word) for word in (program, *words)]


def _escape(text: str) -> str:
    """Return a text in which Kubernetes finds no $(VARIABLE) to replace."""
    return text.replace("$", "$$")


def _environment(name: str, pods: Pods, request: Request) -> list[Object]:
    """Return the container's variables; those that may be secret come from the Secret."""
    own = pods.process.installation
    secrets = process_plan.hidden_environment(request.launcher)
    variables = pods.process.environment | {
        "PYTHONUNBUFFERED": "1",
        HEARTBEAT: f"{STATE}/beat",
        START_VARIABLE: name,
    }
    if PORTS_VARIABLE in variables:
        agent = f"{own.python} -ES {own.root}/launcher/supervise {PACKAGE}.mpi_agent"
        variables["PRTE_MCA_plm_ssh_agent"] = agent
    if pods.row.job == "learner":
        variables[HOSTS_VARIABLE] = _hosts_file(name, request)
    return [
        {"name": each, "valueFrom": {"secretKeyRef": {"name": _secret(name), "key": each}}}
        if each in secrets
        else {"name": each, "value": _escape(value)}
        for each, value in variables.items()
    ]


def _resources(pods: Pods) -> Object:
    row = pods.row
    memory = {"memory": row.memory} if row.memory else {}
    limits = memory | ({"nvidia.com/gpu": row.gpus} if row.gpus else {})
    requests = {"cpu": row.num_cores} | memory
    return {"requests": requests} | ({"limits": limits} if limits else {})


def _volumes(name: str, pods: Pods, request: Request) -> tuple[list[Object], list[Object]]:
    """Return the pod's volumes, and where the container has them."""
    key = "learner" if pods.row.job == "learner" else "actor"
    items = [{"key": key, "path": "token"}]
    secret = {"secretName": _secret(name), "items": items, "defaultMode": 0o440}
    volumes: list[Object] = [
        {"name": "token", "secret": secret},
        {"name": "state", "emptyDir": {"medium": "Memory"}},
    ]
    mounts: list[Object] = [
        {"name": "token", "mountPath": SECRETS, "readOnly": True},
        {"name": "state", "mountPath": STATE},
    ]
    if pods.row.job != "actor":
        claim = {"claimName": request.launcher.volume_claim}
        runs = {"persistentVolumeClaim": claim} if claim["claimName"] else {"emptyDir": {}}
        volumes.append({"name": "runs"} | runs)
        mounts.append({"name": "runs", "mountPath": str(logdir(name, request).parent)})
    return volumes, mounts


def _probe(pods: Pods, config: LauncherConfig) -> Object:
    """Return the probe that ends a container whose process hangs.

    It is no startup probe, until whose success some services give a pod no name in DNS.
    """
    if not config.stall_secs or pods.name == "launcher":  # which has no heartbeat
        return {}
    first = math.ceil(config.stall_secs * FIRST_BEAT_FACTOR)
    # Learners that begin anew in pods that stay load TensorFlow again.
    is_reused = pods.name == "learners-hosts" or PORTS_VARIABLE in pods.process.environment
    probe = {
        "exec": {"command": ["sh", "-c", _PROBE]},
        "initialDelaySeconds": first,
        "periodSeconds": _PROBE_SECONDS,
        "timeoutSeconds": 5,
        "failureThreshold": math.ceil((first if is_reused else config.stall_secs) / _PROBE_SECONDS),
    }
    return {"livenessProbe": probe}


def _split_label(text: str) -> tuple[str, str]:
    """Split KEY=VALUE. Raises PlanError."""
    key, equals, value = text.partition("=")
    if not equals or not NODE_KEY.fullmatch(key) or not LABEL_VALUE.fullmatch(value):
        raise PlanError(f"--node_selector={text}: write KEY=VALUE, a label of the nodes")
    return key, value


# -- the objects of a run, and its token


def write(
    kinds: Sequence[Object], name: str, request: Request, uses_mpirun: bool
) -> tuple[str, list[str]]:
    """Return objects as YAML, and notes, such as how to make their Secret; write the token files.

    `name`: the run's; `uses_mpirun`: whether mpirun starts learners in other pods, which takes
    certificates also with --transport_security=none.
    """
    config = request.launcher
    for flag in ("namespace", "queue", "volume_claim"):
        check_name(flag, getattr(config, flag))
    folder = Path(f"{name}-token")
    security = request.flags.get("transport_security", "auto")
    tokens = _make_tokens(folder, uses_mpirun or security != "none")
    secrets, objects = process_plan.hidden_environment(config), list(kinds)
    notes = list_notes(request)
    if config.emit_secret:
        objects.insert(0, make_object("v1", "Secret", _secret(name), stringData=tokens | secrets))
    else:
        literals = "".join(f' --from-literal={each}="${each}"' for each in secrets)
        namespace = f" --namespace={config.namespace}" if config.namespace else ""
        notes.append(
            f"the pods need this Secret: kubectl create secret generic {_secret(name)}{namespace} "
            f"--from-file={folder}{literals}"
        )
    for each in objects:
        metadata = each["metadata"]
        metadata.setdefault("labels", {})[NAME_LABEL] = name
        if config.namespace:
            metadata["namespace"] = config.namespace
        if config.queue and each["kind"] not in ("Secret", "TrainingRuntime"):
            metadata["labels"]["kueue.x-k8s.io/queue-name"] = config.queue
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=100), notes


def make_object(version: str, kind: str, name: str, **content: Any) -> Object:
    """Return an object of Kubernetes."""
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **content}


class _Dumper(yaml.SafeDumper):
    """YAML in which a text of several lines stands as it is, and every value where it belongs."""

    def ignore_aliases(self, data: Any) -> bool:
        """Repeat a value that occurs twice."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, "|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def _secret(name: str) -> str:
    return f"{name}-token"


def _make_tokens(folder: Path, secure: bool) -> dict[str, str]:
    """Return the run's token for learners and for actors, and keep both in files of a folder."""
    if folder.exists() and not folder.is_dir():
        raise PlanError(
            f"{folder.absolute()} is a file: rename it, since a folder of this name gets the "
            f"run's token"
        )
    content = run_token.read_or_make(str(folder / "learner"), secure)
    tokens = {"learner": content, "actor": certificates.without_learner(content)}
    for job, token in tokens.items():
        with open(folder / job, "w", opener=private) as file:
            file.write(token)
    return tokens
