"""The metrics of runs for Prometheus and other programs, in the format of OpenMetrics.

A metric of metrics.jsonl keeps its name after `impala_mm_`, with what follows a slash as the label
`part`, `learner`, `level` or `kind`, or joined to it. By Prometheus's conventions counts that only
grow, or begin at 0 again, end in `_total`, shares in `_ratio`, times in `_seconds` and sizes in
`_bytes`. Frames, steps, updates and training time return to a checkpoint when a run is resumed, so
they are gauges: of a counter that falls Prometheus assumes that it began at 0.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from impala_mm.records.metric_descriptions import find_description
from launcher.dashboard.run_finder import describe_settings
from launcher.dashboard.run_status import is_live
from launcher.dashboard.watched_run import WatchedRun

CONTENT_TYPE = CONTENT_TYPE_LATEST
_PREFIX = "impala_mm"
_COUNTS = {
    *("unrolls_dropped", "unrolls_padded", "environment_faults", "sync_checks", "sync_repairs"),
}
_LOSSES = {"loss", "loss_per_step"}  # their parts have the same unit
_MIB = 2**20


def render(runs: Mapping[str, WatchedRun]) -> bytes:
    """Return the text that describes these runs."""
    return generate_latest(_Collector(runs))


class _Collector(Collector):
    """The metrics of some runs."""

    def __init__(self, runs: Mapping[str, WatchedRun]):
        self._runs = runs

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with its values for all runs."""
        yield from self._describe_runs()
        yield from self._describe_processes()
        families: dict[str, Metric] = {}
        for name, run in self._runs.items():
            for key, value in run.history.last.items():
                if type(value) in (int, float):
                    add_value(families, name, key, float(value))
        yield from families.values()

    def _describe_runs(self) -> Iterator[Metric]:
        about = InfoMetricFamily(f"{_PREFIX}_run", "The run's level and algorithm.", labels=["run"])
        alive = GaugeMetricFamily(
            f"{_PREFIX}_run_alive", "Whether the run has not ended.", labels=["run"]
        )
        row_time = GaugeMetricFamily(
            f"{_PREFIX}_run_row_timestamp_seconds",
            "When the last row of metrics.jsonl was written, in seconds since 1970.",
            labels=["run"],
            unit="seconds",
        )
        for name, run in self._runs.items():
            settings = describe_settings(run.found.logdir)
            about.add_metric(
                [name],
                {each: settings.get(each, "") for each in ("level_name", "algorithm")},
            )
            alive.add_metric([name], float(is_live(run.status)))
            if run.row_time is not None:
                row_time.add_metric([name], run.row_time)
        yield from (about, alive, row_time)

    def _describe_processes(self) -> Iterator[Metric]:
        names = ["run", "process", "role", "host"]  # Prometheus itself uses the label job

        def gauge(name: str, text: str, unit: str = "") -> GaugeMetricFamily:
            return GaugeMetricFamily(f"{_PREFIX}_process_{name}", text, labels=names, unit=unit)

        counted = GaugeMetricFamily(
            f"{_PREFIX}_processes", "Processes in this state.", labels=["run", "role", "state"]
        )
        up = gauge("up", "Whether the process is running.")
        restarts = CounterMetricFamily(
            f"{_PREFIX}_process_restarts", "Restarts of the process.", labels=names
        )
        cores = gauge("cpu_cores", "Cores that the process and its children use.", "cores")
        memory = gauge("memory_bytes", "Resident memory of the process and its children.", "bytes")
        rate = gauge("frames_per_second", "Environment frames per second.")
        for run_name, run in self._runs.items():
            processes = run.status["processes"]
            states = Counter((each["job"], each["state"]) for each in processes)
            for (job, state), number in states.items():
                counted.add_metric([run_name, job, state], number)
            for each in processes:
                labels = [run_name, each["name"], each["job"], each["host"]]
                up.add_metric(labels, float(each["state"] == "running"))
                restarts.add_metric(labels, each["restarts"])
                if each["cpu"] is not None:
                    cores.add_metric(labels, each["cpu"] / 100)
                if each["memory"] is not None:
                    memory.add_metric(labels, each["memory"] * _MIB)
                if each["frames_per_second"] is not None:
                    rate.add_metric(labels, each["frames_per_second"])
        yield from (counted, up, restarts, cores, memory, rate)


def add_value(families: dict[str, Metric], run: str, key: str, value: float) -> None:
    """Add a value of a row to its metric, which is made if it is the first one."""
    name, _, part = key.partition("/")
    labels, about = {"run": run}, find_description(key)
    if part.removeprefix("learner").isdecimal():
        labels["learner"] = part.removeprefix("learner")
    elif part and about and about.parts in ("level", "kind"):
        labels[about.parts] = part
    elif name in _LOSSES:
        labels["part"] = part
    elif part:
        name = f"{name}_{part}"
    shown = "training_seconds" if name == "seconds" else name
    shown = re.sub(r"_share$", "_ratio", re.sub(r"[^a-zA-Z0-9_]", "_", shown))
    # The values of parts have a name of their own, so that a sum over all labels makes sense.
    whose = next((f"{label}_" for label in ("learner", "level") if label in labels), "")
    family = f"{_PREFIX}_{whose}{shown}"
    if family not in families:
        made = CounterMetricFamily if name in _COUNTS else GaugeMetricFamily
        text = about.meaning if about else f"The metric {name} of metrics.jsonl."
        families[family] = made(family, text, labels=list(labels))
    families[family].add_metric(list(labels.values()), value)  # type: ignore[attr-defined]
