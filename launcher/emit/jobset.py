"""--emit=jobset and --emit=trainjob: the run as one JobSet of Kubernetes.

A replicated job for each kind of pods. Its learners end it, and learners restart together without
it: if a learner is lost, mpirun ends, its pod is replaced, and `mpi_host` in the pods of the other
learners waits for the new one. So actors keep playing, whatever the version of JobSet.
"""

from collections.abc import Sequence

from launcher.emit.pod_template import Object, make_object, make_template, write
from launcher.emit.pods import Pods, check_run, make_pods
from launcher.plan.request import Request
from launcher.plan.workers_csv import Worker
from launcher.supervise.task import USER_ERROR

_MOST_RESTARTS = 2**31 - 1  # the largest number that Kubernetes takes
_ENDS = "trainer.kubeflow.org/trainjob-ancestor-step"  # label of the job that a TrainJob is about


def emit_jobset(name: str, workers: Sequence[Worker], request: Request) -> tuple[str, list[str]]:
    """Return a JobSet, and notes. Raises PlanError."""
    jobset = make_object("jobset.x-k8s.io/v1alpha2", "JobSet", name)
    objects = [jobset | {"spec": _spec(name, workers, request)}]
    return write(objects, name, request, _uses_mpirun(workers))


def emit_trainjob(name: str, workers: Sequence[Worker], request: Request) -> tuple[str, list[str]]:
    """Return a TrainJob with its TrainingRuntime, which is the JobSet, and notes."""
    version = "trainer.kubeflow.org/v1alpha1"
    spec = _spec(name, workers, request)
    learners = spec["replicatedJobs"][0]["template"]
    learners["metadata"] = {"labels": {_ENDS: "trainer"}}
    learners["spec"]["template"]["spec"]["containers"][0]["name"] = "node"
    runtime = {"mlPolicy": {"numNodes": 1}, "template": {"spec": spec}}
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": name}
    objects = [
        make_object(version, "TrainingRuntime", name, spec=runtime),
        make_object(version, "TrainJob", name, spec={"runtimeRef": reference}),
    ]
    return write(objects, name, request, _uses_mpirun(workers))


def _uses_mpirun(workers: Sequence[Worker]) -> bool:
    return sum(worker.job == "learner" for worker in workers) > 1


def _spec(name: str, workers: Sequence[Worker], request: Request) -> Object:
    """Return the specification of the JobSet."""

    def host_of(learner: int) -> str:
        pods, number = ("learners-hosts", learner - 1) if learner else ("learners", 0)
        return f"{name}-{pods}-0-{number}.{name}"

    found = make_pods(name, workers, request, host_of)
    for pods in found:
        check_run(name, f"{name}-{pods.name}-0-{pods.size - 1}-abcde")
    return {
        "network": {"enableDNSHostnames": True, "subdomain": name},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": ["learners"]},
        "replicatedJobs": [
            {"name": p.name, "replicas": 1, "template": {"spec": make_job(name, p, request)}}
            for p in found
        ],
    }


def make_job(name: str, pods: Pods, request: Request) -> Object:
    """Return the specification of a Job whose pods have numbers."""
    job: Object = {
        "completionMode": "Indexed",
        "completions": pods.size,
        "parallelism": pods.size,
        "backoffLimit": _MOST_RESTARTS,
    }
    restarts = "OnFailure"
    if pods.name == "learners":
        job["backoffLimit"], restarts = request.launcher.max_restarts, "Never"
        lost = {"type": "DisruptionTarget", "status": "True"}
        mistake = {"operator": "In", "values": [USER_ERROR]}
        rules = [
            {"action": "Ignore", "onPodConditions": [lost]},
            {"action": "FailJob", "onExitCodes": mistake},  # a restart would not help
        ]
        job["podFailurePolicy"] = {"rules": rules}
    return job | {"template": make_template(name, pods, request, restarts)}
