"""What is trained: tables, features, the dense part, and how a step is run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from costmodels.datatypes import DataType as DataType
from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.errors import InvalidValueError, require
from costmodels.fields import settle
from costmodels.layers.base import AbstractLayer, check_cross
from costmodels.operators import Operator
from costmodels.training.communication import NOT_COMPRESSED, Communication
from costmodels.training.optimizers import DenseOptimizer as DenseOptimizer
from costmodels.training.optimizers import Optimizer as Optimizer
from costmodels.training.row_updates import RowUpdate


class Pooling(StrEnum):
    """How the rows of one bag become one vector; ``none`` keeps the sequence."""

    SUM = "sum"
    MEAN = "mean"
    NONE = "none"


class Interaction(StrEnum):
    """How dense and embedding vectors meet before the top MLP."""

    DOT = "dot"
    CAT = "cat"
    DCN = "dcn"


class Pipeline(StrEnum):
    """Training pipelines: TorchRec's three, HugeCTR's with both overlaps on, and BagPipe's."""

    NONE = "none"
    SPARSE_DIST = "sparse_dist"
    PREFETCH_SPARSE_DIST = "prefetch_sparse_dist"
    HUGECTR = "hugectr"
    LOOKAHEAD = "lookahead"


class HostProfile(StrEnum):
    """Software that issues the work of a training step, by what it costs the host.

    Today's eager PyTorch, that of 2021 with its optimizer of one update per tensor and copies that
    the host waits for, and a captured CUDA graph. Figures are in :mod:`costmodels.stages.host`.
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
    """One input looked up in a table: ``pooling_factor`` indices per sample on average."""

    name: str
    pooling_factor: float

    def __post_init__(self) -> None:
        """Check the pooling factor."""
        settle(self, f"feature {self.name!r}: ")
        good = math.isfinite(self.pooling_factor) and 0 <= self.pooling_factor <= 1e6
        require(
            good, f"feature {self.name!r}: pooling_factor must be 0..1e6, got {self.pooling_factor}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One embedding table and the law of its indices.

    ``module`` is the path of the owning module in the model, as TorchRec's plan names it; empty
    when the root itself holds the tables. ``communication`` are the codecs of its exchanges, None
    where nothing is said of them. ``row_update`` is the kernel of its backward pass. Each rank
    exchanges distinct indices where ``deduplicates_indices``.
    """

    name: str
    num_embeddings: int
    embedding_dim: int
    features: tuple[Feature, ...]
    distribution: AbstractIndexDistribution
    dtype: DataType = DataType.FP32
    pooling: Pooling = Pooling.SUM
    is_weighted: bool = False
    module: str = "embedding_bag_collection"
    communication: Communication | None = None
    row_update: RowUpdate = RowUpdate.DEDUPLICATED
    deduplicates_indices: bool = False

    def __post_init__(self) -> None:
        """Check shape and features."""
        require(bool(self.name), "a table needs a name")
        settle(self, f"table {self.name!r}: ")
        where, rows, dim = f"table {self.name!r}", self.num_embeddings, self.embedding_dim
        require(1 <= rows <= 2**48, f"{where}: num_embeddings must be 1..2^48, got {rows}")
        require(1 <= dim <= 16384, f"{where}: embedding_dim must be 1..16384, got {dim}")
        require(len(self.features) >= 1, f"table {self.name!r} needs at least one feature")
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
        """What its exchanges are compressed with."""
        return self.communication or NOT_COMPRESSED

    @property
    def pooling_factor(self) -> float:
        """Mean indices per sample, summed over the features."""
        return sum(f.pooling_factor for f in self.features)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of weights."""
        return self.embedding_dim * self.dtype.num_bytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return self.num_embeddings * self.row_bytes

    @property
    def outputs_per_sample(self) -> float:
        """Vectors per sample that leave the lookup: one per feature, or per index if unpooled."""
        return self.pooling_factor if self.pooling is Pooling.NONE else float(len(self.features))


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorList:
    """The operators of a dense part for one batch size, such as those of a traced module.

    ``before_tables`` need nothing that is looked up; they run while embeddings travel.
    """

    local_batch_size: int
    before_tables: tuple[Operator, ...] = ()
    after_tables: tuple[Operator, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        """Check the batch."""
        batch = self.local_batch_size
        require(
            1 <= batch <= 10**8, f"the batch of a list of operators must be 1..1e8, got {batch}"
        )
        shared = [o.name for o in (*self.before_tables, *self.after_tables) if o.shared_bytes]
        require(
            not shared,
            f"operators {shared[:5]} have shared_bytes, but ranks share layers alone; remove them",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseArch:
    """The dense part, in one of three forms; without any, there is none.

    Bottom MLP, interaction and top MLP of a DLRM; or ``layers``; or ``operators``.
    """

    num_dense_features: int = 0
    bottom_mlp: tuple[int, ...] = ()
    top_mlp: tuple[int, ...] = ()
    interaction: Interaction = Interaction.DOT
    dcn_num_layers: int = 0
    dcn_low_rank_dim: int = 0
    dtype: DataType = DataType.FP32
    layers: tuple[AbstractLayer, ...] = ()
    operators: OperatorList | None = None

    def __post_init__(self) -> None:
        """Check layer sizes, the cross network, and that there is one form."""
        settle(self, "dense: ")
        sizes = (*self.bottom_mlp, *self.top_mlp)
        require(all(1 <= s <= 10**6 for s in sizes), f"MLP layer sizes must be 1..1e6, got {sizes}")
        require(0 <= self.num_dense_features <= 10**8, "num_dense_features must be 0..1e8")
        check_cross(self.interaction.value, self.dcn_num_layers, self.dcn_low_rank_dim)
        meets = self.interaction is not Interaction.DOT
        forms = {
            "bottom_mlp and top_mlp": bool(sizes),
            "interaction": meets and not sizes,
            "layers": bool(self.layers),
            "operators": self.operators is not None,
        }
        given = [name for name, there in forms.items() if there]
        require(
            len(given) <= 1,
            f"the dense part is given twice, by {' and by '.join(given)}; keep one of them",
        )
        require(
            not meets or bool(self.top_mlp),
            f"interaction {self.interaction} needs a top_mlp, which it feeds",
        )

    @property
    def is_given(self) -> bool:
        """Whether there is a dense part."""
        mlps = bool(self.bottom_mlp or self.top_mlp)
        return mlps or bool(self.layers) or self.operators is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model and how one training step of it is run. ``local_batch_size`` is samples per rank.

    ``gradient_accumulation`` micro-batches of that size make a step of a model without tables.
    There, groups of ``tensor_parallel`` ranks of a host may share each layer, with the samples of
    all of them.
    ``between_steps_s`` is host time between steps in which the device has no work, such as reading
    the loss; None means that of the host profile. ``batch_share_ratio``: see ``batch_shares``.
    Caches of the pipeline ``lookahead`` are filled from the next ``lookahead_batches``.
    """

    name: str
    tables: tuple[Table, ...]
    local_batch_size: int
    dense: DenseArch = DenseArch()
    optimizer: Optimizer = Optimizer.ROWWISE_ADAGRAD
    output_dtype: DataType = DataType.FP32
    gradient_dtype: DataType = DataType.FP32
    index_bytes: int = 8
    pipeline: Pipeline = Pipeline.SPARSE_DIST
    cuda_graph: bool = False
    host_profile: HostProfile = HostProfile.EAGER
    between_steps_s: float | None = None
    reserved_bytes: float = 0.0
    dense_optimizer: DenseOptimizer = DenseOptimizer.ADAGRAD
    dense_parallelism: DenseParallelism = DenseParallelism.DDP
    gradient_accumulation: int = 1
    tensor_parallel: int = 1
    input_samples_per_s: float | None = None
    batch_share_ratio: tuple[float, ...] | Literal["proportional"] = ()
    lookahead_batches: int = 0

    def __post_init__(self) -> None:
        """Check batch and names."""
        settle(self)
        _check_shares(self.batch_share_ratio)
        require(
            1 <= self.local_batch_size <= 10**8,
            f"batch_size_per_rank must be 1..1e8, got {self.local_batch_size}",
        )
        require(
            len(self.tables) >= 1 or self.dense.is_given,
            "a workload needs at least one table or a dense part",
        )
        traced = self.dense.operators
        require(
            traced is None or traced.local_batch_size == self.local_batch_size,
            f"the operators of the dense part are for {traced and traced.local_batch_size} samples "
            f"per rank, the batch is {self.local_batch_size}; write them for this batch, or "
            "describe the dense part by layers, which suit every batch",
        )
        seen: set[str] = set()
        for table in self.tables:
            require(table.name not in seen, f"table name {table.name!r} appears twice")
            seen.add(table.name)
        require(self.index_bytes in (4, 8), f"index_bytes must be 4 or 8, got {self.index_bytes}")
        require(
            not self.cuda_graph or self.host_profile is not HostProfile.EAGER_2021,
            "cuda_graph true contradicts host_profile eager_2021; remove one of them",
        )
        require(
            self.dense_parallelism is DenseParallelism.DDP or self.pipeline is not Pipeline.HUGECTR,
            "dense_parallelism fsdp contradicts pipeline hugectr, which keeps the dense part "
            "whole; change one of them",
        )
        require(
            1 <= self.gradient_accumulation <= 10**6,
            f"gradient_accumulation must be 1..1e6, got {self.gradient_accumulation}",
        )
        require(
            self.gradient_accumulation == 1 or not self.tables,
            f"gradient_accumulation {self.gradient_accumulation} needs a model without tables: "
            "tables are updated by every batch; remove it",
        )
        require(
            self.tensor_parallel >= 1,
            f"tensor_parallel must be 1 or more, got {self.tensor_parallel}",
        )
        is_listed = bool(self.dense.layers)
        require(
            self.tensor_parallel == 1 or (is_listed and not self.tables),
            f"tensor_parallel {self.tensor_parallel} needs a model without tables whose dense part "
            "is given by layers; remove it",
        )
        require(self.reserved_bytes >= 0, "the memory reserve must not be negative")
        between_s = self.between_steps_s
        require(between_s is None or 0 <= between_s <= 3600, "between_steps must be 0 to 1 hour")
        rate = self.input_samples_per_s
        require(rate is None or rate > 0, f"input rate must be positive, got {rate}")
        _check_lookahead(self.lookahead_batches, self.pipeline)

    def table(self, name: str) -> Table:
        """The table of that name.

        Raises:
            InvalidValueError: there is none.
        """
        for table in self.tables:
            if table.name == name:
                return table
        msg = f"the workload {self.name!r} has no table {name!r}"
        raise InvalidValueError(msg)

    def trained_row_bytes(self, table: Table, column_widths: Sequence[int] = ()) -> float:
        """Bytes of the weights and the optimizer state of a row, cut into columns or whole."""
        widths = column_widths or (table.embedding_dim,)
        return table.row_bytes + sum(self.optimizer.state_bytes_per_row(width) for width in widths)

    def trained_bytes(self, table: Table, column_widths: Sequence[int] = ()) -> float:
        """The same of all rows of ``table``."""
        return table.num_embeddings * self.trained_row_bytes(table, column_widths)

    @property
    def samples_per_rank(self) -> int:
        """Samples of a rank in one step, over all its micro-batches."""
        return self.local_batch_size * self.gradient_accumulation

    @property
    def dense_update_bytes(self) -> float:
        """Bytes that the dense optimizer's step reads and writes per parameter.

        Where products take two bytes, gradients are copied to fp32 and the updated weights back.
        The optimizer of DLRMs (``adagrad``) is priced without such copies.
        """
        optimizer, element = self.dense_optimizer, self.dense.dtype.num_bytes
        copies = element < DataType.FP32.num_bytes and optimizer is not DenseOptimizer.ADAGRAD
        return optimizer.update_bytes + (8.0 if copies else 0.0)

    @property
    def issued_by(self) -> HostProfile:
        """The host profile, with ``cuda_graph`` as the short form of the one of that name."""
        return HostProfile.CUDA_GRAPH if self.cuda_graph else self.host_profile

    def communicating(self, communication: Communication) -> Workload:
        """The same with these codecs for every table."""
        tables = tuple(replace(t, communication=communication) for t in self.tables)
        return replace(self, tables=tables)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all embedding weights."""
        return sum(t.weight_bytes for t in self.tables)


def _check_shares(shares: object) -> None:
    require(
        not isinstance(shares, str) or shares == "proportional",
        f"batch_share_ratio must be one share for each rank, or 'proportional', got {shares!r}",
    )


def _check_lookahead(batches: int, pipeline: Pipeline) -> None:
    require(0 <= batches <= 10_000, f"lookahead must be 0..10000 batches, got {batches}")
    require(
        not batches or pipeline is Pipeline.LOOKAHEAD,
        f"lookahead {batches} needs pipeline lookahead, got {pipeline}; change one of them",
    )
