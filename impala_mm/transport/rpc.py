"""Calls by TensorFlow's RPC, with as little of its Python as they take; `client` makes them.

`tf.distribute.experimental.rpc.Client.call` passes a Python number where a tensor is due, which
sends every call the slow way through TensorFlow, and its answers look at their nests anew each
time: a third of what a call costs. An actor that only steps makes one for each step of a group.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.distribute.experimental.rpc.kernels import gen_rpc_ops


class RpcCaller:
    """Calls the functions of one learner."""

    def __init__(self, client: Any, timeout: int):
        """`client`: a `tf.distribute.experimental.rpc.Client`; `timeout`: in milliseconds, of
        calls that name none.
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
        """Start a call and return without waiting; `result`: the types of its answer."""
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
    """A call that was started; it frees what TensorFlow keeps of it when it is freed itself."""

    def __init__(self, future: tf.Tensor, deleter: tf.Tensor, result: Sequence[tf.DType]):
        self._future, self._deleter, self._result = future, deleter, result

    def wait(self) -> tuple[int, str]:
        """Wait for the end of the call; return (0, "") or a code of TensorFlow's and its text."""
        code, message = gen_rpc_ops.rpc_check_status(self._future)
        number = int(code)
        return number, message.numpy().decode(errors="replace") if number else ""

    def answer(self) -> list[tf.Tensor]:
        """Return what the function answered, after a `wait` without an error."""
        return gen_rpc_ops.rpc_get_value(self._future, Tout=self._result)

    def __del__(self) -> None:
        if tf.executing_eagerly():
            gen_rpc_ops.delete_rpc_future_resource(handle=self._future, deleter=self._deleter)
        else:  # garbage is collected while a graph is traced, of which this must be no part
            with tf.init_scope():
                gen_rpc_ops.delete_rpc_future_resource(handle=self._future, deleter=self._deleter)
