"""Calls by TensorFlow's RPC with little of its Python code; `client` makes them.

`tf.distribute.experimental.rpc.Client.call` passes a Python number instead of a tensor, which makes
every call take a slow path through TensorFlow, and it inspects the structure of each answer again.
Avoiding both saves a third of a call's cost. An actor that only steps makes one call for each step
of a group.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.distribute.experimental.rpc.kernels import gen_rpc_ops


class RpcCaller:
    """A caller of the functions of one learner."""

    def __init__(self, client: Any, timeout: int):
        """Call by `client`, a `tf.distribute.experimental.rpc.Client`.

        `timeout` is in milliseconds, for calls that give none.
        """
        self._client, self._timeout = client, tf.constant(timeout, tf.int64)
        self._names = dict[str, tf.Tensor]()

    def start(
        self,
        function: str,
        arguments: Sequence[tf.Tensor],
        result: Sequence[tf.DType],
        timeout: int = 0,
    ) -> "PendingCall":
        """Start a call and return without waiting; `result` has the types of its answer."""
        name = self._names.get(function)
        if name is None:
            name = self._names[function] = tf.constant(function)
        future, deleter = gen_rpc_ops.rpc_call(
            self._client._client_handle,
            args=arguments,
            method_name=name,
            timeout_in_ms=tf.constant(timeout, tf.int64) if timeout else self._timeout,
        )
        return PendingCall(future, deleter, result)


class PendingCall:
    """A call that was started; when it is freed, it frees TensorFlow's resource for the call."""

    def __init__(self, future: tf.Tensor, deleter: tf.Tensor, result: Sequence[tf.DType]):
        self._future, self._deleter, self._result = future, deleter, result

    def wait(self) -> tuple[int, str]:
        """Wait for the end of the call; return (0, ""), or TensorFlow's error code and message."""
        code, message = gen_rpc_ops.rpc_check_status(self._future)
        number = int(code)
        return number, message.numpy().decode(errors="replace") if number else ""

    def answer(self) -> list[tf.Tensor]:
        """Return the function's results, after a `wait` without an error."""
        return gen_rpc_ops.rpc_get_value(self._future, Tout=self._result)

    def __del__(self) -> None:
        if tf.executing_eagerly():
            gen_rpc_ops.delete_rpc_future_resource(handle=self._future, deleter=self._deleter)
        else:  # garbage collection while a graph is traced: keep this out of the graph
            with tf.init_scope():
                gen_rpc_ops.delete_rpc_future_resource(handle=self._future, deleter=self._deleter)
