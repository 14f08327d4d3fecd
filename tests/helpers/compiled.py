"""A test of graphs: whether XLA compiles a part."""


def by_xla(function):
    """Return whether the only trace of a tf.function calls a part that XLA must compile."""
    calls = function.get_concrete_function().graph.get_operations()
    return any(call.node_def.attr["_XlaMustCompile"].b for call in calls)
