"""Which lines of mpirun are obeyed, and what is run of them."""

import re

import pytest

from launcher.supervise import daemon_line

# As Open MPI 5.0.11 passes it to the program that it calls instead of ssh.
BEFORE = (
    "PRTE_PREFIX=/opt/mpi;export PRTE_PREFIX;PMIX_PREFIX=/opt/mpi;export PMIX_PREFIX;"
    "LD_LIBRARY_PATH=/opt/mpi/lib:/opt/mpi/lib:$LD_LIBRARY_PATH;export LD_LIBRARY_PATH;"
    "DYLD_LIBRARY_PATH=/opt/mpi/lib:$DYLD_LIBRARY_PATH;export DYLD_LIBRARY_PATH;"
)
ARGUMENTS = (
    ' --daemonize --allow-run-as-root --prtemca ess "env" --prtemca ess_base_nspace "prterun-a-7@0"'
    ' --prtemca ess_base_vpid 1 --prtemca ess_base_num_procs "2"'
    ' --prtemca prte_hnp_uri "prterun-a-7@0.0;tcp://10.0.0.1:4000:64,24;tcp6://[fd00::2]:4001:64"'
    ' --prtemca PREFIXES "errmgr,ess,if" --prtemca plm_ssh_agent "/state/agent"'
    ' --prtemca plm_ssh_no_tree_spawn "1" --prtemca pmix_session_server "1" --prtemca plm "ssh"'
)
LINE = f"{BEFORE}/opt/mpi/bin/prted{ARGUMENTS}"


def test_the_arguments_of_mpiruns_daemon_are_taken_out_of_its_line():
    found = daemon_line.parse(LINE)
    arguments = found.arguments
    assert "--daemonize" not in arguments, "it must stay under its supervisor"
    given = {arguments[i + 1]: arguments[i + 2] for i in range(1, len(arguments), 3)}
    assert arguments[0] == "--allow-run-as-root"
    assert set(arguments[1::3]) == {"--prtemca"}
    assert given["ess_base_nspace"] == "prterun-a-7@0"
    assert given["prte_hnp_uri"].endswith(";tcp6://[fd00::2]:4001:64")
    assert given["plm_ssh_agent"] == "/bin/sh", "the daemon checks that it exists"
    assert found.variables == {"PRTE_PREFIX", "PMIX_PREFIX"}


def test_the_line_for_csh_says_the_same():
    before = (
        "setenv PRTE_PREFIX /opt/mpi;setenv PMIX_PREFIX /opt/mpi;"
        "if ( $?LD_LIBRARY_PATH == 1 ) set PRTE_have_llp;"
        "if ( $?LD_LIBRARY_PATH == 0 ) setenv LD_LIBRARY_PATH /opt/mpi/lib:/opt/mpi/lib;"
        "if ( $?PRTE_have_llp == 1 ) setenv LD_LIBRARY_PATH /opt/mpi/lib:$LD_LIBRARY_PATH;"
    )
    assert daemon_line.parse(f"{before}prted{ARGUMENTS}") == daemon_line.parse(LINE)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "hostname",
        "touch /tmp/x",
        f"touch /tmp/x;{LINE}",
        f"{LINE}; touch /tmp/x",
        f"{LINE} && touch /tmp/x",
        f"{LINE} | sh",
        f"{LINE}\ntouch /tmp/x",
        LINE.replace("PRTE_PREFIX=/opt/mpi", "PRTE_PREFIX=$(touch /tmp/x)"),
        LINE.replace("/opt/mpi/bin/prted", "$(touch /tmp/x)/prted"),
        LINE.replace("/opt/mpi/bin/prted", "/opt/mpi/bin/sh -c prted"),
        LINE.replace("/opt/mpi/bin/prted", "/opt/mpi/bin/prted-x"),
        LINE.replace('"2"', '"`touch /tmp/x`"'),
        LINE.replace('"2"', '"$(touch /tmp/x)"'),
        LINE.replace('"2"', "$(touch /tmp/x)"),
        LINE.replace('"2"', '"2"\\;x'),
    ],
)
def test_no_other_line_of_shell_is_obeyed(line):
    with pytest.raises(daemon_line.Unexpected, match="this does not start mpirun's daemon"):
        daemon_line.parse(line)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (" /bin/sh", "to have the argument /bin/sh"),
        (" --prefix /tmp/x", "to have the argument --prefix"),
        (" --prtemca ess", "to have the argument --prtemca"),
        (" --prtemca prte_fork_agent /tmp/x", "to have the parameter prte_fork_agent=/tmp/x"),
        (
            " --prtemca mca_base_component_path /tmp",
            "to have the parameter mca_base_component_path",
        ),
    ],
)
def test_arguments_that_could_run_another_program_are_refused(more, why):
    with pytest.raises(daemon_line.Unexpected, match=re.escape(why)):
        daemon_line.parse(LINE + more)


def test_a_parameter_that_the_user_gives_to_mpirun_may_name_a_file():
    more = ' --prtemca prte_default_hostfile "/etc/hosts"'
    given = ["--prtemca", "prte_default_hostfile", "/etc/hosts"]
    assert daemon_line.parse(LINE + more, given).arguments[-2:] == given[1:]


def test_a_daemon_that_is_not_told_its_mpirun_is_refused():
    line = re.sub(r'--prtemca prte_hnp_uri "\S+"', "", LINE)
    with pytest.raises(daemon_line.Unexpected, match="lacks the parameter prte_hnp_uri"):
        daemon_line.parse(line)
