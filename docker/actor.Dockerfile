# Image of an actor's host: TensorFlow for the CPU, the environments and SSH; it has no Horovod, MPI,
# CUDA or compiler.
#   docker build --file docker/actor.Dockerfile --tag impala_mm-actor .
# How to run it: docker/images.md.
FROM python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends 'binutils=2.40-*' \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/impala_mm
COPY pyproject.toml setup.py constraints.lock README.md LICENSE ./
COPY docker/install.py docker/package_sets.py docker/steps.py docker/horovod_wheel.py docker/
COPY impala_mm impala_mm
COPY nets nets
COPY launcher launcher
# Files that only a build needs are removed again: TensorFlow's headers are 290 MB, libclang 60, and the
# names of functions in TensorFlow's libraries, which only debuggers read, 240. Files are copied from
# uv's cache, not linked, since `strip` writes to them in place.
RUN --mount=type=cache,target=/root/.cache \
    UV_LINK_MODE=copy python docker/install.py --role=actor \
 && .venv/bin/python -m pip uninstall --yes libclang uv \
 && rm -r .venv/lib/python3.11/site-packages/tensorflow/include \
 && find .venv/lib/python3.11/site-packages/tensorflow -name '*.so*' -exec strip --strip-unneeded {} +

FROM python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d
# bookworm keeps these versions and only adds fixes to them. The host keys that the package brings are
# removed, since they would be the same in every container. A new volume belongs to the owner of the
# folder that it is mounted on, so the folders for volumes belong to impala.
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
COPY experiment.py run_experiment_mm_raw.py /opt/impala_mm/
WORKDIR /opt/impala_mm
USER 1000
ENV PATH=/opt/impala_mm/.venv/bin:$PATH
ENTRYPOINT ["/opt/impala_mm/docker/entry.sh"]
