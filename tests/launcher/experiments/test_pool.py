"""How trials share the rows of a CSV."""

from launcher.experiments.file import Needs
from launcher.experiments.pool import Pool, rows_here, write_csv
from launcher.plan import workers_csv

CSV = """job,ip,cuda_visible_devices,count,ssh_username
learner,h1.invalid,0,,
learner,h1.invalid,1,,
learner,h2.invalid,,,bob
actor,h1.invalid,,2,
actor,h2.invalid,,3,bob
"""


def make(tmp_path, needs):
    path = tmp_path / "all.csv"
    path.write_text(CSV)
    return Pool(workers_csv.read(str(path))[0], needs)


def places(rows):
    return [
        f"{row.job} {row.ip.partition('.')[0]} {row.cuda_visible_devices}".strip() for row in rows
    ]


def test_trials_take_rows_and_give_them_back(tmp_path):
    pool = make(tmp_path, Needs(learners=1, actors=2))
    first, second = pool.take(), pool.take()
    assert places(first) == ["learner h1 0", "actor h1", "actor h1"]
    assert places(second) == ["learner h2", "actor h2", "actor h2"]
    assert pool.take() == []  # one actor is left
    pool.give_back(first)
    pool.set_lost({"h1.invalid"})
    assert pool.take() == []
    pool.set_lost(set())
    assert places(pool.take()) == ["learner h1 1", "actor h1", "actor h1"]


def test_learners_and_gpus_stand_on_one_host_if_they_can(tmp_path):
    pool = make(tmp_path, Needs(learners=2, actors=3, gpus=1))
    assert places(pool.take()) == [
        "learner h1 0",
        "learner h1 1",
        "actor h1",
        "actor h1",
        "actor h2",
    ]
    assert make(tmp_path, Needs(learners=3, gpus=1)).why_too_small() == (
        "a trial needs 3 rows of learners with 1 GPUs, and the CSV has 2"
    )
    assert "6 actors, and the CSV has 5" in make(tmp_path, Needs(actors=6)).why_too_small()


def test_cores_limit_the_trials_of_a_host(tmp_path):
    pool = make(tmp_path, Needs(actors=0, cores=4))
    pool.set_cores({"h1.invalid": 7, "bob@h2.invalid": 4})
    assert places(pool.take()) == ["learner h1 0"]
    assert places(pool.take()) == ["learner h2"]
    assert pool.take() == []
    pool.set_cores({"h1.invalid": 3, "bob@h2.invalid": 2})
    assert "4 cores, and no learner's host has more than 3" in pool.why_too_small()
    pool = make(tmp_path, Needs(actors=0, cores=4))
    first = pool.take()
    pool.set_cores({"h1.invalid": 7})  # as when a host is reached only now
    assert places(pool.take()) == ["learner h2"]
    pool.give_back(first)
    assert places(pool.take()) == ["learner h1 1"]


def test_a_host_that_is_gone_from_the_csv_gets_no_more_trials(tmp_path):
    pool = make(tmp_path, Needs(actors=1))
    (tmp_path / "old.csv").write_text(CSV.replace("h1", "gone"))
    rows = workers_csv.read(str(tmp_path / "old.csv"))[0]
    pool.take_again([rows[0], rows[3]])
    pool.give_back([rows[0], rows[3]])
    assert {row.ip for _ in range(3) for row in pool.take()} == {"h1.invalid", "h2.invalid"}
    assert pool.take() == []


def test_ports_of_one_address_are_hosts_of_their_own_and_passwords_may_change(tmp_path):
    path = tmp_path / "all.csv"
    path.touch(0o600)
    rows = "learner,h.invalid,{0},old\nactor,h.invalid,{0},old\n"
    path.write_text("job,ip,ssh_port,ssh_password\n" + rows.format(2201) + rows.format(2202))
    read = workers_csv.read(str(path))[0]
    path.write_text(path.read_text().replace("old", "new"))
    pool = Pool(workers_csv.read(str(path))[0], Needs(actors=1))
    assert pool.host_ids == ["h.invalid:2201", "h.invalid:2202"]
    pool.set_lost({"h.invalid:2201"})
    assert [row.ssh_port for row in pool.take()] == [2202, 2202]
    pool.set_lost(set())
    pool.take_again(read[:2])
    assert pool.take() == []
    pool.give_back(read[:2])
    assert [row.ssh_password for row in pool.take()] == ["new", "new"]


def test_the_csv_of_a_trial_has_the_rows_it_took(tmp_path):
    pool = make(tmp_path, Needs(actors=2))
    pool.take()
    rows = pool.take()
    path = tmp_path / "trial.csv"
    write_csv(path, rows)
    assert path.stat().st_mode & 0o777 == 0o600
    read, _ = workers_csv.read(str(path))
    assert places(read) == places(rows)
    assert {row.ssh_username for row in read} == {"bob"}
    pool.give_back(rows)
    pool.take_again(read)  # as after a restart of the experiment's process
    assert pool.take() == []
    here = Pool(rows_here(Needs(actors=1), 2), Needs(actors=1))
    assert (len(here.take()), len(here.take()), here.take()) == (2, 2, [])
