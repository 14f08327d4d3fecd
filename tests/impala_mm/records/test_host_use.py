"""The rows of what a run uses on each host."""

from impala_mm.records import host_use
from impala_mm.records.host_use import OTHER_HOSTS, HostRows, HostUse
from impala_mm.runtime.machine import GpuUse


def test_what_learners_report_of_a_host_is_added_up():
    gpus = [GpuUse("0", "A", "37", "1200", "8000"), GpuUse("1", "A", "[N/A]", "4", "8000")]
    first = [HostUse("a", 1.5, 1000.0, gpus), HostUse("b", 0.25, 100.5)]
    second = [HostUse("b", 1.0, 800.0), HostUse("a", 0.125, 10.0)]
    assert HostRows().make(first + second) == {
        "cores/a": 1.62,  # 1.625, rounded to even
        "memory/a": 1010.0,
        "gpu/a/0": 37.0,
        "gpu_memory/a/0": 1200.0,
        "gpu_memory/a/1": 4.0,
        "cores/b": 1.25,
        "memory/b": 900.5,
    }


def test_hosts_beyond_the_first_ones_are_added_up_for_good():
    rows, most = HostRows(), host_use._MOST_HOSTS
    parts = [HostUse(f"h{i}", 1.0, 10.0) for i in range(most + 3)]
    first, again = rows.make(parts), rows.make(parts[::-1])
    assert first == again, "in any order"
    assert len(first) == 2 * most + 2
    assert (first[f"cores/{OTHER_HOSTS}"], first[f"memory/{OTHER_HOSTS}"]) == (3.0, 30.0)
    later = rows.make(parts[3:])
    assert len(later) == 2 * most, "the places of hosts that have left are free"
    assert OTHER_HOSTS not in str(later)

    gpus = [GpuUse("0", "A", "37", "1200", "8000")]
    row = rows.make([*parts, HostUse("gpu1", 1.0, 10.0, gpus)])
    assert (row["gpu/gpu1/0"], row["gpu_memory/gpu1/0"]) == (37, 1200), "GPUs are always kept"
