"""Optimizers of the embedding tables and of the dense part, by what they keep and move."""

from __future__ import annotations

from enum import StrEnum


class Optimizer(StrEnum):
    """Optimizer of the embedding tables, fused into the backward pass."""

    SGD = "sgd"
    ROWWISE_ADAGRAD = "rowwise_adagrad"
    ADAGRAD = "adagrad"
    ADAM = "adam"
    ROWWISE_ADAM = "partial_rowwise_adam"
    NONE = "none"

    def state_bytes_per_row(self, num_cols: int) -> float:
        """State of one row of a shard ``num_cols`` wide, in bytes; states are kept in fp32.

        Row-wise states are kept once per row *of each column shard*, as FBGEMM does.
        """
        return {
            Optimizer.SGD: 0.0,
            Optimizer.NONE: 0.0,
            Optimizer.ROWWISE_ADAGRAD: 4.0,
            Optimizer.ADAGRAD: 4.0 * num_cols,
            Optimizer.ADAM: 8.0 * num_cols,
            Optimizer.ROWWISE_ADAM: 4.0 * num_cols + 4.0,
        }[self]


class DenseOptimizer(StrEnum):
    """Optimizer of the dense part.

    ``adagrad`` has one state; ``adam`` is one fused kernel, ``adam_foreach`` PyTorch's default of
    some kernels for all tensors; ``lamb`` also reads norms of every tensor.
    """

    SGD = "sgd"
    ADAGRAD = "adagrad"
    ADAM = "adam"
    ADAM_FOREACH = "adam_foreach"
    LAMB = "lamb"

    @property
    def num_states(self) -> int:
        """States of 4 bytes that each parameter has."""
        return {"sgd": 0, "adagrad": 1}.get(self.value, 2)

    @property
    def update_bytes(self) -> float:
        """Bytes that a step reads and writes per parameter in fp32.

        Adam reads weight, gradient and both states and writes all but the gradient. Its kernels
        over all tensors read and write 18 times 4 bytes; LAMB reads and writes 15 times: those of
        Adam into an update, norms of weight, gradient and update, and the update's application.
        """
        passes = {"sgd": 3, "adagrad": 4, "adam": 7, "adam_foreach": 18, "lamb": 15}
        return 4.0 * passes[self.value]
