"""The list of orders: what is not on it is refused, whatever it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.node import host_orders
from launcher.node.agent_main import ChangeReporter
from launcher.node.controlled_node import ControlledNode
from launcher.node.host_orders import ORDERS, Refused, parse
from launcher.node.local_node import LocalNode

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)
NAMES = st.sampled_from(sorted({name for checks in ORDERS.values() for name in checks}))
GOOD = {
    "follow": {"start": "a1", "files": {"/logs/actor-0.log": 7}},
    "has_start": {"start": "a1"},
    "request_stop": {"mode": "save", "name": "actor-0"},
    "kill": {"lost_only": True},
    "kill_learners": {"start": "a1"},
    "restart": {"names": ["actor-0", "evaluator"]},
    "restart_learners": {"addresses": ["10.0.0.1", "gpu-2.lan", "fe80::1%eth0"]},
    "start_planned_daemon_supervisor": {"replace": False},
    "write_planned_mpirun_agent": {
        "supervisors": {"10.0.0.1": {"port": 7001, "id": "a1"}, "b": {}}
    },
}


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_is_accepted_with_its_arguments_and_is_a_method_of_its_host(order):
    arguments = GOOD.get(order, {})
    assert parse({"id": 3, "op": order} | arguments) == (3, order, arguments)
    if order not in ("ping", "end_orders"):  # the server itself obeys these
        assert any(hasattr(each, order) for each in (ChangeReporter, ControlledNode, LocalNode))


@given(st.sampled_from(sorted(ORDERS)) | st.text(), st.dictionaries(NAMES, JSON, max_size=3))
def test_an_order_is_on_the_list_with_its_arguments_or_refused(order, arguments):
    try:
        _, accepted, taken = parse({"id": 1, "op": order} | arguments)
    except Refused:
        return
    assert accepted in ORDERS
    assert taken.keys() <= ORDERS[accepted].keys()
    assert all(ORDERS[accepted][name](value) for name, value in taken.items())


@given(JSON)
def test_a_message_that_is_no_order_is_refused(message):
    with pytest.raises(Refused):
        parse(message)


@given(st.text(min_size=1), st.sampled_from(["../x", "a b", "$(c)", "a;b", "a/b", "", "x" * 65]))
def test_no_name_can_be_a_path_or_text_for_a_shell(before, bad):
    for order, name in (("restart", "names"), ("kill_learners", "start"), ("has_start", "start")):
        for value in (bad, before + bad + " "):
            with pytest.raises(Refused):
                parse({"op": order, name: [value] if name == "names" else value})
    for value in ("a b", "$(c)", "a;b", "a/b", "a\n", ""):
        with pytest.raises(Refused):
            parse({"op": "restart_learners", "addresses": [value]})


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"op": "run_program", "command": ["sh"]}, "there is no order 'run_program'"),
        ({"op": "start_processes", "tasks": []}, "there is no order 'start_processes'"),
        ({"op": "__init__"}, "there is no order '__init__'"),
        ({"op": "kill", "command": "sh"}, "the order kill has no argument 'command'"),
        ({"op": "kill", "lost_only": 1}, "the order kill does not take lost_only='1'"),
        ({"op": "request_stop"}, "the order request_stop needs the argument mode"),
        ({"op": "ping", "id": "1"}, "an order's id is a whole number"),
        (
            {"op": "write_planned_mpirun_agent", "supervisors": {"a": {"port": 0, "id": "b"}}},
            "the order write_planned_mpirun_agent does not take supervisors=",
        ),
    ],
)
def test_a_refusal_says_why(message, said):
    with pytest.raises(Refused) as error:
        parse(message)
    assert str(error.value).startswith(said)


def test_nothing_on_the_list_starts_what_was_not_planned():
    """These methods of hosts have commands, files or credentials as arguments."""
    for name in ("run_program", "start_processes", "begin_run", "start_daemon_supervisor"):
        assert name not in host_orders.ORDERS
    for name in ("write_mpirun_agent", "start_controller", "write_control", "start_order_server"):
        assert name not in host_orders.ORDERS
