"""Names of variables: paths from the algorithm, the same in each process and whatever the order."""

from types import SimpleNamespace

import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms.parts import optimizers
from impala_mm.data import variable_names
from impala_mm.data.variables import Variables


def _named(holder, *variables):
    variable_names.assign(Variables(list(variables), [], []), holder)
    return [variable_names.path_of(variable) for variable in variables]


def test_a_name_is_the_path_through_attributes_entries_items_and_modules():
    layer = snt.Linear(2)
    layer(tf.zeros([1, 3]))
    count, generator = tf.Variable(0), tf.random.Generator.from_seed(1)
    parts = {"a.b/c": SimpleNamespace(_count=count)}
    holder = SimpleNamespace(_layers=[(layer, "x")], _parts=parts, draws=generator)
    named = _named(holder, layer.w, layer.b, count, generator.state)
    assert named == ["layers/0/0/w", "layers/0/0/b", "parts/a_b_c/count", "draws/state_var"]


def test_the_shortest_path_wins_and_then_the_first_but_one_with_a_number_at_its_end_is_the_last():
    x, y, z = (tf.Variable(0.0) for _ in range(3))
    inner = SimpleNamespace(x=x, y=y)
    holder = SimpleNamespace(all=[x, z], inner=inner, y=y, a=y)
    assert _named(holder, x, y, z) == ["inner/x", "a", "all/1"]
    assert _named(SimpleNamespace(_a=x, a=y), x, y) == ["a", "a_"]


def test_a_slot_is_named_by_its_parameter_so_that_its_place_in_the_list_does_not_matter():
    one, other = tf.Variable([0.0]), tf.Variable([0.0])
    optimizer = optimizers.make("adam", 0.1, 0.9, 0.0, 1e-5)
    optimizer.initialize([other, one])
    holder = SimpleNamespace(one=one, other=other, optimizer=optimizer)
    named = _named(holder, one, other, *optimizer.m, optimizer.step)
    assert named[2:] == ["optimizer/m/other", "optimizer/m/one", "optimizer/step"]


def test_a_variable_to_which_no_path_leads_has_no_name_but_tensorflows():
    lost = tf.Variable(0.0, name="lost")
    holder = SimpleNamespace(act=lambda: lost)
    holder.itself, holder.variables = holder, Variables([lost], [], [])
    assert _named(holder, lost) == [""]
    assert variable_names.of(lost) == "lost"
