# A machine that learns on GPUs: TensorFlow with its CUDA libraries, Horovod over NCCL, Open MPI.
#   docker build --file docker/learner.Dockerfile --tag impala_mm-learner .
#   docker run --gpus all --network host impala_mm-learner
# CUDA 12.9 is what TensorFlow 2.21's packages bring; its compiler is needed only while building.
FROM nvidia/cuda:12.9.1-devel-ubuntu24.04 AS build
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ python3 python3-dev python3-venv \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/impala_mm
ENV CUDA_HOME=/usr/local/cuda
COPY pyproject.toml constraints.lock README.md LICENSE ./
COPY docker/install.py docker/steps.py docker/horovod_wheel.py docker/
COPY impala_mm impala_mm
COPY nets nets
COPY launcher launcher
# A learner without Horovod is no use here: where its build fails, so does the image's.
RUN python3 docker/install.py --role=learner --device=gpu && test -x .venv/bin/horovodrun

FROM ubuntu:24.04
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends openssh-client python3 tmux \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 2000 impala
COPY --from=build /opt/impala_mm /opt/impala_mm
COPY experiment.py run_experiment_mm_raw.py workers.csv.example /opt/impala_mm/
WORKDIR /opt/impala_mm
USER 2000
# The last two are for `docker run --user root`: Open MPI refuses root unless told twice.
ENV PATH=/opt/impala_mm/.venv/bin:$PATH \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    OMPI_ALLOW_RUN_AS_ROOT=1 \
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
ENTRYPOINT ["python", "experiment.py"]
