"""What is trained: tables, features, the dense part, and how a step is run."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from costmodels.datatypes import DataType as DataType
from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.errors import refuse, require
from costmodels.fields import Amount, Positive, Range, settle
from costmodels.layers.dense_part import NO_DENSE_PART
from costmodels.layers.dense_part import DenseArch as DenseArch
from costmodels.layers.dense_part import Framework as Framework
from costmodels.layers.dense_part import Interaction as Interaction
from costmodels.layers.dense_part import InteractionKernel as InteractionKernel
from costmodels.layers.dense_part import OperatorList as OperatorList
from costmodels.training.communication import Communication
from costmodels.training.optimizers import DenseOptimizer as DenseOptimizer
from costmodels.training.optimizers import Optimizer as Optimizer
from costmodels.training.optimizers import RowUpdate


class Pooling(StrEnum):
    """What becomes of the rows that a sample looks up: the sum, the mean, or (``none``) all."""

    SUM = "sum"
    MEAN = "mean"
    NONE = "none"


class Pipeline(StrEnum):
    """Which parts of a training step run beside others.

    ``none``, ``sparse_dist`` and ``prefetch_sparse_dist`` are TorchRec's, ``hugectr`` is HugeCTR's
    with both overlaps on, ``lookahead`` is BagPipe's. ``prioritized`` is TorchRec's
    TrainPipelinePEC: vectors of rows that the batch before does not have travel beside its
    backward pass. The order of each is in :mod:`costmodels.iteration.base`.
    """

    NONE = "none"
    SPARSE_DIST = "sparse_dist"
    PREFETCH_SPARSE_DIST = "prefetch_sparse_dist"
    HUGECTR = "hugectr"
    LOOKAHEAD = "lookahead"
    PRIORITIZED = "prioritized"


TORCHREC_PIPELINES: Final = (
    Pipeline.SPARSE_DIST,
    Pipeline.PREFETCH_SPARSE_DIST,
    Pipeline.PRIORITIZED,
)
"""TorchRec's pipelines that work on several batches at once. They take host time of their own, and
hold the looked-up vectors of a batch until its step has ended."""


_FOREACH_ADAGRAD: Final = 52.0
"""Bytes that PyTorch's Adagrad reads and writes per parameter. Its five kernels add the squared
gradient to the state (3 passes of 4 bytes), take the square root (2), add epsilon (2), scale the
gradient (2) and update the weight (4)."""


class HostProfile(StrEnum):
    """Which software issues the work of a training step, and so how long the host takes for it.

    ``eager`` is today's PyTorch; ``eager_2021`` is PyTorch of 2021, with one update per tensor in
    its optimizer and copies that the host waits for; ``cuda_graph`` replays a captured graph. The
    times are in :mod:`costmodels.stages.host`.
    """

    EAGER = "eager"
    EAGER_2021 = "eager_2021"
    CUDA_GRAPH = "cuda_graph"


class DenseParallelism(StrEnum):
    """How ranks share the training of the dense part.

    ``ddp``: each has all of it, and gradients are all-reduced in buckets beside the backward pass
    (DistributedDataParallel). ``fsdp``: each keeps a share of parameters, gradients and states;
    layers are gathered before their forward and again before their backward pass, and gradients
    reduced and scattered after it (FullyShardedDataParallel, ZeRO stage 3).
    """

    DDP = "ddp"
    FSDP = "fsdp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One input of the model, which is looked up in one table.

    Attributes:
        name: of the input.
        pooling_factor: mean number of indices that a sample has of it, 0 to 1e6.

    Raises:
        InvalidValueError: the pooling factor is out of range.

    Example:
        >>> Feature(name="clicked_items", pooling_factor=20.0).pooling_factor
        20.0
    """

    name: str
    pooling_factor: Annotated[float, Range(0, 10**6)]

    def __post_init__(self) -> None:
        """Check the pooling factor."""
        settle(self, f"feature {self.name!r}: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table of ``num_embeddings`` x ``embedding_dim`` numbers, and how it is looked up.

    Attributes:
        name: no two tables of a workload may have the same.
        num_embeddings: rows, 1 to 2^48.
        embedding_dim: columns, 1 to 16384.
        features: the inputs that are looked up in it, at least one.
        distribution: how often each row is looked up; it must have as many rows as the table.
        dtype: element type of the weights.
        pooling: whether the rows found are added up, averaged, or kept as a sequence.
        is_weighted: whether every index comes with a weight.
        module: path of the module that owns the table, as TorchRec's plan names it; empty when the
            root itself holds the tables.
        communication: codecs of its exchanges; None for those of the workload file.
        row_update: the kernel that updates rows in the backward pass.
        deduplicates_indices: whether each rank exchanges every distinct row of its batch only once;
            for unpooled tables.
        optimizer: what updates its rows; None for the optimizer of the workload.
        next_batch_ratio: for unpooled tables, share of the vectors it exchanges for a batch whose
            rows the next batch has too; None for what the distribution says of independent batches.

    Raises:
        InvalidValueError: a size is out of range, or two fields contradict each other.

    Example:
        >>> feature = Feature(name="item", pooling_factor=2.0)
        >>> law = Uniform(num_embeddings=1000)
        >>> table = Table(
        ...     name="item",
        ...     num_embeddings=1000,
        ...     embedding_dim=64,
        ...     features=(feature,),
        ...     distribution=law,
        ... )
        >>> table.weight_bytes  # 1000 x 64 numbers of 4 bytes
        256000
    """

    name: str
    num_embeddings: Annotated[int, Range(1, 2**48)]
    embedding_dim: Annotated[int, Range(1, 16384)]
    features: tuple[Feature, ...]
    distribution: AbstractIndexDistribution
    dtype: DataType = DataType.FP32
    pooling: Pooling = Pooling.SUM
    is_weighted: bool = False
    module: str = "embedding_bag_collection"
    communication: Communication | None = None
    row_update: RowUpdate = RowUpdate.DEDUPLICATED
    deduplicates_indices: bool = False
    optimizer: Optimizer | None = None
    next_batch_ratio: Annotated[float, Range(0, 1)] | None = None

    def __post_init__(self) -> None:
        """Check shape and features."""
        where, shared = f"table {self.name!r}", self.next_batch_ratio
        settle(self, f"{where}: ")
        require(bool(self.name), "a table needs a name")
        _check_stored(f"{where}: dtype", self.dtype)
        require(len(self.features) >= 1, f"table {self.name!r} needs at least one feature")
        require(
            shared is None or self.pooling is Pooling.NONE,
            f"{where}: next_batch_ratio needs pooling none, got {self.pooling}; TorchRec sends no "
            "pooled vectors early",
        )
        require(
            not self.deduplicates_indices or self.pooling is Pooling.NONE,
            f"table {self.name!r}: deduplicate_indices needs pooling none, got {self.pooling}; "
            "TorchRec has it for unpooled tables only",
        )
        require(
            self.distribution.num_embeddings == self.num_embeddings,
            f"table {self.name!r} has {self.num_embeddings} rows but its index distribution "
            f"{self.distribution.num_embeddings}",
        )

    @property
    def codecs(self) -> Communication:
        """The codecs of its exchanges; none unless ``communication`` is set."""
        return self.communication or Communication()

    @property
    def pooling_factor(self) -> float:
        """Mean indices per sample, summed over the features."""
        return sum(f.pooling_factor for f in self.features)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of weights."""
        return int(self.embedding_dim * self.dtype.num_bytes)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return self.num_embeddings * self.row_bytes

    @property
    def outputs_per_sample(self) -> float:
        """Vectors per sample that leave the lookup: one per feature, or per index if unpooled."""
        return self.pooling_factor if self.pooling is Pooling.NONE else float(len(self.features))


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model, and how one training step of it is run.

    Attributes:
        name: of the model.
        tables: embedding tables; a model without tables needs a dense part.
        batch_size_per_rank: samples per rank (the mean over ranks if batches are unequal). It is a
            whole number, or one when it is multiplied by ``tensor_parallel``: 0.5 for one sample on
            two ranks.
        dense: the layers that are not tables.
        optimizer: of the tables that name none; its state is kept beside the weights.
        output_dtype: type of the looked-up vectors that are exchanged, and of their gradients.
        gradient_dtype: type in which ranks reduce the gradients of the dense part.
        index_bytes: bytes of one index, 4 or 8.
        pipeline: which parts of a step run beside others.
        cuda_graph: short form of the host profile ``cuda_graph``.
        host_profile: how long the host takes to issue the work of a step.
        between_steps_s: seconds between two steps in which the host gives the device no work, such
            as reading the loss; None for those of the host profile.
        reserved_bytes: device memory per rank that no plan may use.
        dense_optimizer: of the dense part.
        dense_parallelism: how ranks share the training of the dense part.
        gradient_accumulation: micro-batches of ``batch_size_per_rank`` in a step; models without
            tables only.
        tensor_parallel: how many ranks share each layer, and the samples of all of them; models
            without tables only. They are ranks of one host, or all ranks of several hosts.
        input_samples_per_s: what the data source delivers to all ranks together; None for no limit.
        batch_share_ratio: each rank's share of the global batch, see
            :mod:`costmodels.topology`; empty for equal batches.
        lookahead_batches: how many batches ahead the pipeline ``lookahead`` fills its caches.

    Raises:
        InvalidValueError: a value is out of range, or two fields contradict each other.

    Example:
        >>> law = Uniform(num_embeddings=1000)
        >>> table = Table(
        ...     name="item",
        ...     num_embeddings=1000,
        ...     embedding_dim=64,
        ...     features=(Feature(name="item", pooling_factor=2.0),),
        ...     distribution=law,
        ... )
        >>> Workload(name="tiny", tables=(table,), batch_size_per_rank=512).weight_bytes
        256000
    """

    name: str
    tables: tuple[Table, ...]
    batch_size_per_rank: float
    dense: DenseArch = NO_DENSE_PART
    optimizer: Optimizer = Optimizer.ROWWISE_ADAGRAD
    output_dtype: DataType = DataType.FP32
    gradient_dtype: DataType = DataType.FP32
    index_bytes: int = 8
    pipeline: Pipeline = Pipeline.SPARSE_DIST
    cuda_graph: bool = False
    host_profile: HostProfile = HostProfile.EAGER
    between_steps_s: Annotated[float, Range(0, 3600)] | None = None
    reserved_bytes: Amount = 0.0
    dense_optimizer: DenseOptimizer = DenseOptimizer.ADAGRAD
    dense_parallelism: DenseParallelism = DenseParallelism.DDP
    gradient_accumulation: Annotated[int, Range(1, 10**6)] = 1
    tensor_parallel: Annotated[int, Range(1, 10**8)] = 1
    input_samples_per_s: Positive | None = None
    batch_share_ratio: tuple[float, ...] | Literal["proportional"] = ()
    lookahead_batches: Annotated[int, Range(0, 10_000)] = 0

    def __post_init__(self) -> None:
        """Check batch and names."""
        shares = self.batch_share_ratio
        require(
            not isinstance(shares, str) or shares == "proportional",
            f"batch_share_ratio must be one share for each rank, or 'proportional', got {shares!r}",
        )
        settle(self)
        _check_stored("output_dtype", self.output_dtype)
        _check_stored("gradient_dtype", self.gradient_dtype)
        _check_batch(self)
        require(
            len(self.tables) >= 1 or self.dense.is_given,
            "a workload needs at least one table or a dense part",
        )
        traced = self.dense.operators
        require(
            traced is None or traced.batch_size_per_rank == self.batch_size_per_rank,
            f"the operators of the dense part are for {traced and traced.batch_size_per_rank} "
            f"samples per rank, the batch is {self.batch_size_per_rank}; write them for this "
            "batch, or describe the dense part by layers, which suit every batch",
        )
        names = Counter(table.name for table in self.tables)
        for name, count in names.items():
            require(count == 1, f"table name {name!r} appears twice")
        require(self.index_bytes in (4, 8), f"index_bytes must be 4 or 8, got {self.index_bytes}")
        require(
            not self.cuda_graph or self.host_profile is not HostProfile.EAGER_2021,
            "cuda_graph true contradicts host_profile eager_2021; remove one of them",
        )
        count, split = self.gradient_accumulation, self.tensor_parallel
        require(
            count == 1 or not self.tables,
            f"gradient_accumulation {count} needs a model without tables: tables are updated by "
            "every batch; remove it",
        )
        _check_hugectr(self)
        require(
            split == 1 or (bool(self.dense.layers) and not self.tables),
            f"tensor_parallel {split} needs a model without tables whose dense part "
            "is given by layers; remove it",
        )
        require(
            not self.lookahead_batches or self.pipeline is Pipeline.LOOKAHEAD,
            f"lookahead {self.lookahead_batches} needs pipeline lookahead, got {self.pipeline}; "
            "change one of them",
        )

    def table(self, name: str) -> Table:
        """The table of that name.

        Raises:
            InvalidValueError: there is none.
        """
        found = next((table for table in self.tables if table.name == name), None)
        if found is None:
            refuse(f"the workload {self.name!r} has no table {name!r}")
        return found

    def optimizer_of(self, table: Table) -> Optimizer:
        """What updates the rows of a table: its own optimizer, or that of the workload."""
        return table.optimizer or self.optimizer

    def trained_row_bytes(self, table: Table, column_widths: Sequence[int] = ()) -> float:
        """Bytes of the weights and the optimizer state of a row, cut into columns or whole."""
        widths = column_widths or (table.embedding_dim,)
        state = self.optimizer_of(table).state_bytes_per_row
        return table.row_bytes + sum(state(width) for width in widths)

    def trained_bytes(self, table: Table, column_widths: Sequence[int] = ()) -> float:
        """Bytes of the weights and the optimizer state of all rows of ``table``."""
        return table.num_embeddings * self.trained_row_bytes(table, column_widths)

    @property
    def samples_per_rank(self) -> float:
        """Samples of a rank in one step, over all its micro-batches."""
        return self.batch_size_per_rank * self.gradient_accumulation

    @property
    def dense_update_bytes(self) -> float:
        """Bytes that the dense optimizer's step reads and writes per parameter.

        Where products take two bytes, gradients are copied to fp32 and the updated weights back.
        Under autocast, operators of the dense part do this (``Operator.is_cast``). The optimizer of
        DLRMs (``adagrad``) is priced without such copies; it is one kernel in HugeCTR alone.
        """
        optimizer, element = self.dense_optimizer, self.dense.dtype.num_bytes
        if optimizer is DenseOptimizer.ADAGRAD and self.pipeline is not Pipeline.HUGECTR:
            return _FOREACH_ADAGRAD
        copies = element < DataType.FP32.num_bytes and optimizer is not DenseOptimizer.ADAGRAD
        is_autocast = all(getattr(layer, "autocast", True) for layer in self.dense.layers)
        copies &= self.pipeline is Pipeline.HUGECTR or not is_autocast
        return optimizer.update_bytes + (8.0 if copies else 0.0)

    @property
    def is_foreign(self) -> bool:
        """Whether the dense part may run in a framework whose steps were never measured."""
        framework = self.dense.framework
        if framework is None:
            is_dense_only = not self.tables and self.pipeline is not Pipeline.HUGECTR
            return self.dense.is_given and (is_dense_only or self.dense.compiled)
        return framework is Framework.OTHER

    @property
    def issued_by(self) -> HostProfile:
        """The host profile, with ``cuda_graph`` as the short form of the one of that name."""
        return HostProfile.CUDA_GRAPH if self.cuda_graph else self.host_profile

    def communicating(self, communication: Communication) -> Self:
        """The same with these codecs for every table."""
        tables = tuple(replace(t, communication=communication) for t in self.tables)
        return replace(self, tables=tables)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all embedding weights."""
        return sum(t.weight_bytes for t in self.tables)


def _check_stored(name: str, dtype: DataType) -> None:
    require(
        dtype is not DataType.FP4,
        f"{name} fp4 is a type of products of the dense part only; choose another type",
    )


_ROUNDING: Final = 1e-6
"""Samples by which a decimal fraction, such as 0.333333333 on three ranks, may miss a whole one."""


def _check_batch(workload: Workload) -> None:
    """Check the samples of a rank, and make a whole number an ``int``."""
    given, split = workload.batch_size_per_rank, workload.tensor_parallel
    least = f"1/{split}" if split > 1 else "1"
    require(
        math.isfinite(given) and given * split >= 1 - _ROUNDING and given <= 10**8,
        f"batch_size_per_rank must be {least}..1e8, got {given}",
    )
    each = f", or one on the {split} ranks of tensor_parallel together" if split > 1 else ""
    require(
        abs(given * split - round(given * split)) <= _ROUNDING,
        f"batch_size_per_rank must be a whole number{each}, got {given}",
    )
    if given == round(given):
        object.__setattr__(workload, "batch_size_per_rank", round(given))


def _check_hugectr(workload: Workload) -> None:
    is_sharded = workload.dense_parallelism is DenseParallelism.FSDP
    count, is_hugectr = workload.gradient_accumulation, workload.pipeline is Pipeline.HUGECTR
    every = "updates with every batch; remove it, or choose pipeline none"
    for what, is_set, why in (
        ("dense.compiled", workload.dense.compiled, "has kernels of its own; remove it"),
        ("dense_parallelism fsdp", is_sharded, "keeps the dense part whole; change one of them"),
        (f"gradient_accumulation {count}", count > 1, every),
    ):
        refused = f"{what} contradicts pipeline hugectr, which {why}"
        require(not (is_set and is_hugectr), refused)
