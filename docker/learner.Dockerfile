# Image of a learner's host: TensorFlow with its CUDA libraries, Horovod with NCCL, Open MPI and SSH.
#   docker build --file docker/learner.Dockerfile --tag impala_mm-learner .
#   docker build --file docker/learner.Dockerfile --tag impala_mm-learner:cpu --build-arg DEVICE=cpu .
# How to run it: docker/images.md.
ARG DEVICE=gpu

FROM python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d AS build-cpu
# bookworm keeps these versions and only adds fixes to them.
RUN apt-get update \
 && apt-get install -y --no-install-recommends 'g++=4:12.2.*' 'make=4.3-*' \
 && rm -rf /var/lib/apt/lists/*

# TensorFlow 2.21's packages contain CUDA 12.9; its compiler is needed only for the build.
FROM build-cpu AS build-gpu
ENV CUDA_HOME=/usr/local/cuda
COPY --from=nvidia/cuda:12.9.1-devel-ubuntu24.04@sha256:020bc241a628776338f4d4053fed4c38f6f7f3d7eb5919fecb8de313bb8ba47c /usr/local/cuda-12.9 /usr/local/cuda

# One of the two stages above; the other one is not built.
# hadolint ignore=DL3006
FROM build-${DEVICE} AS build
ARG DEVICE
WORKDIR /opt/impala_mm
COPY pyproject.toml setup.py constraints.lock README.md LICENSE ./
COPY docker/install.py docker/package_sets.py docker/steps.py docker/horovod_wheel.py docker/
COPY impala_mm impala_mm
COPY nets nets
COPY launcher launcher
# If the build of Horovod fails, the build of the image fails, too. Files that only the build needs are
# removed again.
RUN --mount=type=cache,target=/root/.cache \
    python docker/install.py --role=learner --device="${DEVICE}" \
 && test -x .venv/bin/horovodrun \
 && .venv/bin/python -m pip uninstall --yes cmake uv \
 && rm -r .venv/lib/python3.11/site-packages/tensorflow/include

FROM python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d
# The host keys that the package brings are removed, since they would be the same in every container.
# A new volume belongs to the owner of the folder that it is mounted on, so the folders for volumes
# belong to impala.
RUN apt-get update \
 && apt-get install -y --no-install-recommends \
    'openssh-client=1:9.2p1-*' 'openssh-server=1:9.2p1-*' 'tmux=3.3a-*' \
 && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* \
 && useradd --create-home --uid 1000 --shell /bin/bash impala \
 && install --directory --owner=impala --group=impala --mode=700 \
    /home/impala/.ssh /home/impala/host_keys \
    /home/impala/.config /home/impala/.config/impala_mm /opt/impala_mm/runs
COPY --from=build /opt/impala_mm /opt/impala_mm
COPY docker/entry.sh docker/sshd_config /opt/impala_mm/docker/
COPY experiment.py run_experiment_mm_raw.py workers.csv.example /opt/impala_mm/
WORKDIR /opt/impala_mm
USER 1000
ENV PATH=/opt/impala_mm/.venv/bin:$PATH \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
ENTRYPOINT ["/opt/impala_mm/docker/entry.sh"]
