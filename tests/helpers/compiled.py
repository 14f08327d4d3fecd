"""A test of graphs: whether XLA compiles a part."""


def by_xla(function):
    """Return whether the only trace of a tf.function has a part that XLA must compile."""
    traced = function.get_concrete_function().graph.as_graph_def()
    return any(part.attr["_XlaMustCompile"].b for part in traced.library.function)
