# A machine that plays: TensorFlow for the CPU and the environments; no Horovod, no MPI, no tests.
#   docker build --file docker/actor.Dockerfile --tag impala_mm-actor .
FROM python:3.11-slim-bookworm AS build
WORKDIR /opt/impala_mm
COPY pyproject.toml constraints.lock README.md LICENSE ./
COPY docker/install.py docker/steps.py docker/horovod_wheel.py docker/
COPY impala_mm impala_mm
COPY nets nets
COPY launcher launcher
RUN python docker/install.py --role=actor

FROM python:3.11-slim-bookworm
RUN useradd --create-home --uid 1000 impala
COPY --from=build /opt/impala_mm /opt/impala_mm
COPY experiment.py /opt/impala_mm/
WORKDIR /opt/impala_mm
USER 1000
ENV PATH=/opt/impala_mm/.venv/bin:$PATH
ENTRYPOINT ["python", "experiment.py"]
