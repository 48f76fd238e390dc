"""Optimizers of tables and of the dense part: bytes of their states, and bytes that they move."""

from enum import StrEnum


class RowUpdate(StrEnum):
    """What a backward kernel does if several indices of a batch name the same row.

    - ``deduplicated``: FBGEMM's exact update. Indices are sorted; then every distinct row is
      updated once.
    - ``deduplicated_without_sort``: the same update, if the time of the sort is not asked for, as
      for a trace that lists the update kernel alone.
    - ``per_index``: a row is updated once for each of its indices, by atomic additions and without
      a sort, as kernels before FBGEMM did.
    """

    DEDUPLICATED = "deduplicated"
    DEDUPLICATED_WITHOUT_SORT = "deduplicated_without_sort"
    PER_INDEX = "per_index"

    @property
    def sorts(self) -> bool:
        """Whether the time includes a sort of the indices."""
        return self is RowUpdate.DEDUPLICATED


class Optimizer(StrEnum):
    """Optimizer of the embedding tables, fused into the backward pass."""

    SGD = "sgd"
    ROWWISE_ADAGRAD = "rowwise_adagrad"
    ADAGRAD = "adagrad"
    ADAM = "adam"
    ROWWISE_ADAM = "partial_rowwise_adam"
    NONE = "none"

    def state_bytes_per_row(self, num_cols: int) -> float:
        """Bytes of the fp32 states of one row of a shard with ``num_cols`` columns.

        A row-wise optimizer has one state per row of a shard. A table that is cut by columns has
        one in each of its shards, as in FBGEMM.
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

    - ``sgd`` without momentum, and ``adagrad`` with one state per parameter.
    - ``adam`` runs as one fused kernel, ``adam_foreach`` as some kernels that each work on all
      tensors, which is PyTorch's default.
    - ``lamb`` scales the update of Adam by norms of each tensor.
    """

    SGD = "sgd"
    ADAGRAD = "adagrad"
    ADAM = "adam"
    ADAM_FOREACH = "adam_foreach"
    LAMB = "lamb"

    @property
    def num_states(self) -> int:
        """States that each parameter has, of 4 bytes each."""
        return {"sgd": 0, "adagrad": 1}.get(self.value, 2)

    @property
    def num_temporaries(self) -> int:
        """Tensors of the size of all parameters in fp32 that an update makes for a moment.

        They are those of PyTorch's kernels that work on all tensors (torch/optim/adam.py: a root;
        adagrad.py: a root and a numerator).
        """
        return {"adagrad": 2, "adam_foreach": 1}.get(self.value, 0)

    @property
    def update_bytes(self) -> float:
        """Device bytes that a step reads and writes for each parameter in fp32.

        Counted in passes of 4 bytes over all parameters:

        - ``sgd``: reads weight and gradient, writes the weight: 3.
        - ``adagrad``: reads weight, gradient and state, writes weight and state: 5.
        - ``adam``: reads weight, gradient and both states, writes all of them but the gradient: 7.
        - ``adam_foreach``: 18 for its kernels together.
        - ``lamb``: 15, for Adam's passes that write an update, for the norms of weight, gradient
          and update, and for applying the update.
        """
        passes = {"sgd": 3, "adagrad": 5, "adam": 7, "adam_foreach": 18, "lamb": 15}
        return 4.0 * passes[self.value]
