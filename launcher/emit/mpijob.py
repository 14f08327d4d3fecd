"""--emit=mpijob: the learners as an MPIJob of Kubeflow, and a Job for each other kind of pods.

mpirun runs in the launcher and has no learner; a worker is a learner. Where the operator would use
ssh, `mpi_host` in the workers waits for mpirun, so that the image needs no sshd. Actors need
numbers, which a Deployment's pods have not.
"""

from collections.abc import Sequence

from launcher.emit.jobset import make_job
from launcher.emit.pod_template import make_object, make_template, write
from launcher.emit.pods import check_run, make_pods
from launcher.plan.process_plan import PlanError
from launcher.plan.request import Request
from launcher.plan.workers_csv import Worker


def emit(name: str, workers: Sequence[Worker], request: Request) -> tuple[str, list[str]]:
    """Return the objects, and notes. Raises PlanError."""
    if not request.launcher.volume_claim:
        raise PlanError(
            "--emit=mpijob: give --volume_claim, by which mpirun's pod learns from the first "
            "learner's that the run has ended"
        )
    launcher, learners, *others = make_pods(
        name,
        workers,
        request,
        host_of=lambda learner: f"{name}-worker-{learner}.{name}",
        launcher=f"{name}-launcher.{name}",
    )
    check_run(name, f"{name}-worker-{learners.size - 1}")
    replicas = {
        role: {
            "replicas": pods.size,
            "restartPolicy": restarts,
            "template": make_template(name, pods, request),
        }
        for role, pods, restarts in (
            ("Launcher", launcher, "Never"),
            ("Worker", learners, "OnFailure"),
        )
    }
    # The operator's defaults, but for the number of restarts.
    spec = {
        "slotsPerWorker": 1,
        "runLauncherAsWorker": False,
        "launcherCreationPolicy": "AtStartup",
        "mpiImplementation": "OpenMPI",
        "sshAuthMountPath": "/root/.ssh",
        "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": request.launcher.max_restarts},
        "mpiReplicaSpecs": replicas,
    }
    objects = [make_object("kubeflow.org/v2beta1", "MPIJob", name, spec=spec)]
    for pods in others:
        check_run(name, f"{name}-{pods.name}-{pods.size - 1}-abcde")
        job = make_job(name, pods, request)
        objects.append(make_object("batch/v1", "Job", f"{name}-{pods.name}", spec=job))
    text, notes = write(objects, name, request, uses_mpirun=True)
    if others:
        notes.append(
            f"the other Jobs do not end with the learners: kubectl delete job "
            f"-l app.kubernetes.io/instance={name}"
        )
    return text, notes
