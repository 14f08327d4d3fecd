"""The part of Kubernetes that a manifest needs to run: here, with a simulated host for each pod.

It does what the kubelet and the controllers of Jobs, JobSets and MPIJobs do: names in DNS, volumes,
Secrets, variables, restarts by the policies, the hook before a pod's end. A pod's container has its
own first process, as in Kubernetes. It has no scheduler and no limits of resources, and pods wait
one second where Kubernetes waits ten and more.
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from deadlines import Deadline
from host import Host, Machine, make_disk, write_init
from hosts import Switch

from launcher.supervise.procfs import descendants

# What the MPI operator adds to a launcher's container.
_OPERATOR = {
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
    "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
    "OMPI_MCA_orte_set_default_slots": "1",
}
_NAMESPACES = ("--net", "--uts", "--ipc", "--mount", "--pid")


class _PodHost(Host):
    """A host whose cable has a short name."""

    def _cables(self):
        nic, address = next(iter(self.machine.nics.items()))
        return [("pod" + address.rpartition(".")[2], nic, address)]


class Pod:
    """A pod: a host that is new for each pod of this name, and a container in it."""

    def __init__(self, cluster, template, host, number):
        self._cluster, self._spec, self.host = cluster, template["spec"], host
        self._number = number
        (self._container,) = self._spec["containers"]
        self.starts = self.restarts = 0  # of pods with this name, and of containers in them
        self.process = None
        self.succeeded = False

    @property
    def printed(self) -> str:
        """What the container of now has printed."""
        return self.process.printed()

    def start(self) -> None:
        """Create the pod, and its container."""
        if self.host.up:
            self.host.kill_all()
        self.host.boot()
        self.starts += 1
        self._mount()
        self.run()

    def run(self) -> None:
        """Start the container again in the same pod."""
        variables = {
            each["name"]: each["value"]
            if "value" in each
            else self._cluster.secrets[each["valueFrom"]["secretKeyRef"]["name"]][each["name"]]
            for each in self._container["env"]
        }
        variables |= {"JOB_COMPLETION_INDEX": str(self._number)} | self._cluster.added(self)
        words = self._container["command"] + self._container["args"]
        self.process = self.host.start(
            *("env", "-C", self._container["workingDir"]),
            *("unshare", "--fork", "--pid", "--kill-child", "--mount-proc"),
            *(_expand(word, variables) for word in words),
            **{name: _expand(value, variables) for name, value in variables.items()},
        )

    def _first(self) -> int:
        """Return the pid of the container's first process in this machine's namespace."""
        return descendants(self.process.process.pid)[1]

    def inside(self, command: list[str]) -> subprocess.Popen:
        """Start a command in the container, as probes and hooks do."""
        return subprocess.Popen(["nsenter", f"--target={self._first()}", *_NAMESPACES, *command])

    def hang(self) -> None:
        """Stop the container's first process."""
        os.kill(self._first(), signal.SIGSTOP)

    def probe(self) -> bool:
        """Return whether the liveness probe succeeds."""
        return self.inside(self._container["livenessProbe"]["exec"]["command"]).wait() == 0

    def delete(self) -> None:
        """End the pod: the hook, SIGTERM, SIGKILL."""
        if self.process.process.poll() is None:
            grace = Deadline(self._spec.get("terminationGracePeriodSeconds", 30))
            hook = None
            if "lifecycle" in self._container:
                hook = self.inside(self._container["lifecycle"]["preStop"]["exec"]["command"])
                _wait(lambda: hook.poll() is not None or self._is_over(), grace)
            with contextlib.suppress(IndexError):
                self.inside(["kill", "-TERM", "1"]).wait()
            _wait(self._is_over, grace)
            if hook:
                hook.kill()
                hook.wait()
        self.code = self.process.process.poll()
        self.host.kill_all()

    def _is_over(self) -> bool:
        return self.process.process.poll() is not None

    def _mount(self) -> None:
        """Fill the volumes: a folder of this machine stands for each claim."""
        mounts = {each["name"]: each["mountPath"] for each in self._container["volumeMounts"]}
        for volume in self._spec["volumes"]:
            path = mounts[volume["name"]]
            if secret := volume.get("secret"):
                content = self._cluster.secrets[secret["secretName"]]
                self.host.run("mkdir", "-p", path)
                for item in secret["items"]:
                    file, text = f"{path}/{item['path']}", shlex.quote(content[item["key"]])
                    self.host.run("sh", "-c", f"printf %s {text} >{file}")
                    self.host.run("chmod", oct(secret["defaultMode"])[2:], file)
            elif claim := volume.get("persistentVolumeClaim"):
                assert path == str(self._cluster.claims[claim["claimName"]])


class _Job:
    """A Job: pods with numbers, which are replaced as its policies say."""

    def __init__(self, pods, restarts, most=0, mistakes=()):
        self.pods, self._restarts, self._most, self._mistakes = pods, restarts, most, mistakes
        self._failures, self.failed = 0, ""

    @property
    def succeeded(self) -> bool:
        return all(pod.succeeded for pod in self.pods)

    def turn(self) -> None:
        """Look at all pods once."""
        for pod in self.pods:
            code = pod.process.process.poll()
            if code is None or pod.succeeded:
                continue
            if code == 0 and pod.host.up:
                pod.succeeded = True
            elif not pod.host.up:  # its node is lost, which does not count
                pod.start()
            elif code in self._mistakes:
                self.failed = f"exit code {code}: {pod.printed}"
            elif self._restarts == "OnFailure":
                pod.restarts += 1
                pod.run()
            else:
                self._failures += 1
                if self._failures > self._most:
                    self.failed = f"{self._failures} failures: {pod.printed}"
                else:
                    pod.start()


class Kubernetes:
    """A cluster with the objects of one manifest."""

    def __init__(self, objects, secrets, claims: dict[str, Path]):
        """Create the objects; `claims`: folders in place of volumes."""
        self.secrets, self.claims = secrets, claims
        self._folder = Path(tempfile.mkdtemp(prefix="impala-pods-"))
        self.pods: dict[str, Pod] = {}
        self._launchers: set[Pod] = set()
        self.jobs: dict[str, _Job] = {}
        self._made: list[tuple] = []  # (hostname, subdomain, template, number)
        for each in objects:
            getattr(self, f"_add_{each['kind'].lower()}")(each["metadata"]["name"], each["spec"])
        self._boot()

    def _add_jobset(self, name, spec) -> None:
        assert spec["successPolicy"]["operator"] == "All"
        self._ends = spec["successPolicy"]["targetReplicatedJobs"]
        for each in spec["replicatedJobs"]:
            job = each["template"]["spec"]
            hosts = [f"{name}-{each['name']}-0-{i}" for i in range(job["completions"])]
            self._add(each["name"], hosts, spec["network"]["subdomain"], job)

    def _add_mpijob(self, name, spec) -> None:
        self._ends = ["launcher"]
        for role, each in spec["mpiReplicaSpecs"].items():
            names = [f"{name}-worker-{i}" for i in range(each["replicas"])]
            hosts = [f"{name}-launcher"] if role == "Launcher" else names
            each["template"]["spec"]["restartPolicy"] = each["restartPolicy"]
            job = each | {"backoffLimit": spec["runPolicy"]["backoffLimit"]}
            self._add(role.lower(), hosts, name, job)

    def _add_job(self, name, spec) -> None:
        hosts = [f"{name}-{i}" for i in range(spec["completions"])]
        self._add(name, hosts, "", spec)

    def _add(self, name, hosts, subdomain, job) -> None:
        template = job["template"]
        rules = job.get("podFailurePolicy", {}).get("rules", [])
        codes = [code for r in rules for code in r.get("onExitCodes", {}).get("values", [])]
        self._made.append((name, hosts, subdomain, template))
        restarts = template["spec"]["restartPolicy"]
        self.jobs[name] = _Job([], restarts, job["backoffLimit"], codes)

    def _boot(self) -> None:
        flat = [
            (job, host, subdomain, template, number)
            for job, hosts, subdomain, template in self._made
            for number, host in enumerate(hosts)
        ]
        machines = [
            Machine(host, {"eth0": f"10.78.1.{i}"}, port=0)
            for i, (_, host, *_) in enumerate(flat, 10)
        ]
        lines = ["127.0.0.1 localhost"]
        for machine, (_, host, subdomain, *_) in zip(machines, flat, strict=True):
            lines.append(f"{machine.address} {host}.{subdomain or host} {host}")
        names = "\n".join(lines) + "\n"
        self._switch = Switch([machine.address for machine in machines])
        for machine, (job, host, _, template, number) in zip(machines, flat, strict=True):
            root = self._folder / host
            make_disk(root, machine, machines, ())
            (root / "etc/hosts").write_text(names)
            write_init(root, machine, machines, list(self.claims.values()))
            pod = Pod(self, template, _PodHost(machine, root, self._switch.ip), number)
            self.pods[host] = pod
            self.jobs[job].pods.append(pod)
            if job == "launcher":
                self._launchers.add(pod)
        for pod in self.pods.values():
            pod.start()

    def added(self, pod: Pod) -> dict[str, str]:
        """Return the variables that a controller adds."""
        return _OPERATOR if pod in self._launchers else {}

    @property
    def failed(self) -> str:
        """Why a Job has failed."""
        return next((job.failed for job in self.jobs.values() if job.failed), "")

    @property
    def succeeded(self) -> bool:
        """Whether the jobs that decide have ended well."""
        return all(self.jobs[name].succeeded for name in self._ends)

    def until(self, holds: Callable[[], bool], seconds: float) -> None:
        """Let the controllers work until something holds."""
        deadline = Deadline(seconds)
        while not holds():
            assert not self.failed, self.failed
            assert not deadline.is_over(), "\n".join(
                f"== {name}\n{pod.printed[-3000:]}" for name, pod in self.pods.items()
            )
            for job in self.jobs.values():
                job.turn()
            time.sleep(1)

    def close(self) -> None:
        """End everything."""
        for pod in self.pods.values():
            with contextlib.suppress(Exception):
                pod.host.end()
        self._switch.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _expand(text: str, variables: dict[str, str]) -> str:
    """Replace $(NAME) by a variable, and $$ by a dollar sign; leave other names as they are."""

    def value(found: re.Match) -> str:
        return "$" if found[0] == "$$" else variables.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", value, text)


def _wait(holds: Callable[[], bool], deadline: Deadline) -> None:
    while not holds() and not deadline.is_over():
        time.sleep(0.1)


@contextlib.contextmanager
def running(objects, secrets, claims) -> Iterator[Kubernetes]:
    """Run the objects of a manifest until the test ends."""
    made = Kubernetes(objects, secrets, claims)
    try:
        yield made
    finally:
        made.close()
