"""Reads what modules, sharders and constraints say of tables: features, codecs, optimizers."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from numbers import Real
from typing import Any, Final, NamedTuple

from torch import nn
from torch.nn.parameter import is_lazy
from torchrec.distributed.embedding import get_ec_index_dedup
from torchrec.distributed.planner.types import ParameterConstraints, SharderData
from torchrec.distributed.planner.utils import sharder_name
from torchrec.distributed.types import CommOp, ModuleSharder
from torchrec.models.dlrm import DLRM, DLRM_DCN
from torchrec.modules import embedding_configs
from torchrec.modules.embedding_modules import EmbeddingBagCollectionInterface
from torchrec.modules.embedding_tower import EmbeddingTower, EmbeddingTowerCollection
from torchrec.modules.mc_embedding_modules import BaseManagedCollisionEmbeddingCollection

from costmodels import workload as nouns
from costmodels.fields import shown
from costmodels.torchrec_estimates import TorchrecInputs
from costmodels.training.communication import Codec, Codecs, Communication, Precision
from costmodels.workload import Feature, Optimizer, Pooling, Table
from planner.errors import refuse
from planner.integrations.translate import private_names as private
from planner.integrations.translate import settings
from planner.options.torchrec_rules import COLUMN_MULTIPLE
from planner.problem import Constraints


@dataclass(frozen=True)
class TableSource:
    """One table in a TorchRec model.

    Attributes:
        path, parameter_name: the two keys of the table in a ``ShardingPlan``.
        module: the module that owns the table.
        parameter: its weights.
        sharder: the sharder of the module, with codecs and index dedup; None if not known.
        config: TorchRec's configuration of the table.
        limit: its constraint; ``settings.NO_LIMIT`` if the user gave none.
    """

    path: str
    parameter_name: str
    module: nn.Module
    parameter: nn.Parameter
    sharder: Any
    config: Any
    limit: ParameterConstraints

    @property
    def tower(self) -> str | None:
        """The embedding tower of the table, named as in TorchRec's enumerator; None without."""
        if not isinstance(self.module, EmbeddingTower | EmbeddingTowerCollection):
            return None
        for index, tower in enumerate(getattr(self.module, "towers", ())):
            if self.parameter_name in (table_configs(tower.embedding) or {}):
                return f"{self.path}.tower_{index}"
        return self.path

    @property
    def output_dtype(self) -> nouns.DataType:
        """The type of its vectors, by its constraint, or else its sharder's ``fused_params``.

        Raises:
            InvalidInputError: that is no type of outputs.
        """
        if self.limit.output_dtype is not None:
            return settings.data_type_of(self.limit.output_dtype, "output_dtype")
        chosen = settings.fused_setting(self.sharder, "output_dtype")
        name = "fused_params['output_dtype']"
        return nouns.DataType.FP32 if chosen is None else settings.data_type_of(chosen, name)


class KeyValueTable(NamedTuple):
    """How a key-value table is run: its kernel, and the cache of each shard on its device.

    ``num_buckets`` is set for virtual tables with buckets, which must not be cut.
    """

    kernel: str
    cache_bytes: float
    num_buckets: int | None = None

    @property
    def is_virtual(self) -> bool:
        """Whether rows exist only after their ids were seen."""
        return self.kernel in settings.VIRTUAL


@dataclass(frozen=True, kw_only=True)
class ShardableTable(TableSource):
    """A table of a model, and the same table in our workload.

    Attributes:
        table: the table in our workload. Its name is the parameter name, with the path in front if
            several modules have a table of that name.
        key_value: how a key-value table is run; ``table`` is then the table it is priced as.
    """

    table: Table
    key_value: KeyValueTable | None = None


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """What the planner knows of a model: the workload, the limits, and the place of each table.

    ``warnings`` say what was assumed, and which settings are not priced. ``knows_optimizer`` is
    False if a table trains with an optimizer whose cost is not known.
    """

    workload: nouns.Workload
    constraints: Constraints
    tables: tuple[ShardableTable, ...]
    warnings: tuple[str, ...]
    knows_optimizer: bool = True

    @property
    def inputs(self) -> tuple[tuple[str, TorchrecInputs], ...]:
        """Each table's inputs as TorchRec's estimators count them, by name."""
        batch_size = int(self.workload.batch_size_per_rank)
        return tuple((t.table.name, torchrec_inputs(t, batch_size)) for t in self.tables)

    @property
    def key_values(self) -> dict[str, KeyValueTable]:
        """The key-value tables, by name."""
        return {t.table.name: t.key_value for t in self.tables if t.key_value is not None}


MOST_INDICES: Final = 10**6
"""The most indices per sample that a feature may have, as in a workload."""


def features_of(
    names: Sequence[str], limit: ParameterConstraints, batch_size: int
) -> tuple[Feature, ...]:
    """The features of a table with their indices per sample of the rank's batch.

    TorchRec counts ``pooling_factor * num_poolings * batch_size`` indices for a feature. If a
    constraint has more or fewer values than there are features, the sum of indices is spread evenly
    over the features.

    Raises:
        InvalidInputError: the lists of a constraint differ in length, which TorchRec refuses too;
            or a value is not a number, negative, or not finite.
    """
    lists = {
        "pooling_factors": limit.pooling_factors,
        "num_poolings": limit.num_poolings or [1.0],
        "batch_sizes": limit.batch_sizes or [batch_size],
    }
    longest = max(len(values) for values in lists.values())
    count = len(names) if longest == 1 else longest
    for what, values in lists.items():
        is_single = len(values) == 1 and (longest == 1 or not getattr(limit, what))
        if len(values) != count and not is_single:
            refuse(f"{what} has {len(values)} values for {count} inputs; give one for each")
        for value in values:
            if not (isinstance(value, Real) and 0 <= float(value) < math.inf):
                refuse(f"{what} must be finite numbers of 0 or more, got {value!r}")
    repeated = [list(v) * (count if len(v) == 1 else 1) for v in lists.values()]
    indices = [float(p) * n * b / batch_size for p, n, b in zip(*repeated, strict=True)]
    if max(indices) > MOST_INDICES:
        told = {"indices": max(indices), "batch_size": batch_size, "most": MOST_INDICES}
        refuse(settings.said("many indices", **told))
    if count != len(names):
        indices = [sum(indices) / len(names)] * len(names)
    return tuple(Feature(name=n, pooling_factor=i) for n, i in zip(names, indices, strict=True))


def is_weighted(module: nn.Module) -> bool:
    """Whether a module with tables takes weights of indices."""
    return bool(getattr(module, "is_weighted", lambda: False)())


def is_spread(features: Sequence[object], constraint: ParameterConstraints) -> bool:
    """Whether a constraint has more or fewer values than there are features."""
    lists = (constraint.pooling_factors, constraint.num_poolings, constraint.batch_sizes)
    return any(values and len(values) not in (1, len(features)) for values in lists)


def uses_index_dedup(sharder: ModuleSharder[nn.Module] | SharderData) -> bool:
    """Whether the unpooled tables of a sharder exchange only the distinct indices of each batch.

    This is set when the sharder is made, or for all sharders by TorchRec's older
    ``set_ec_index_dedup``. For modules with managed collisions, the sharder of their inner tables
    decides.
    """
    return private.has_index_dedup(sharder) or bool(get_ec_index_dedup())


def torchrec_inputs(entry: ShardableTable, batch_size: int) -> TorchrecInputs:
    """The inputs of a table as TorchRec's estimators count them.

    Without a constraint, TorchRec assumes one feature with one index. Bytes of optimizer state go
    by the very class of the optimizer on the parameter: as many as of weights for a class that
    TorchRec does not know, such as one derived from Adam, and none without any, as with
    ``fused_params``.

    Args:
        entry: the table.
        batch_size: samples per rank.
    """
    limit, parameter, module = entry.limit, entry.parameter, entry.module
    is_pooled = entry.table.pooling is not Pooling.NONE
    lengths = [float(x) for x in limit.pooling_factors]
    repeats = limit.num_poolings or [1.0] * len(lengths)
    batches = limit.batch_sizes or [batch_size] * len(lengths)
    read = list(zip(lengths, repeats, batches, strict=False))
    weighted = limit.is_weighted
    if isinstance(module, EmbeddingBagCollectionInterface):
        weighted = module.is_weighted()
    # A feature processor with the table's name is taken for the table's own.
    processors = getattr(private.feature_processor(module), "feature_processor_modules", None)
    is_processed = isinstance(processors, nn.ModuleDict) and entry.parameter_name in processors
    fused_prefetch = settings.fused_setting(entry.sharder, "prefetch_pipeline")
    cache, width = limit.cache_params, parameter.element_size()
    if limit.output_dtype is not None:
        width = settings.data_type_of(limit.output_dtype, "output_dtype").num_bytes
    kind = next(iter(private.optimizer_classes(parameter)), None)
    return TorchrecInputs(
        num_ids=sum(x * n * b for x, n, b in read),
        num_outputs=sum((min(1.0, x) if is_pooled else x) * n * b for x, n, b in read),
        is_weighted=bool(weighted) or is_processed,
        prefetches=bool((cache and cache.prefetch_pipeline) or fused_prefetch),
        optimizer_ratio=private.optimizer_multiplier(kind, parameter),
        output_bytes=float(width),
    )


_EXCHANGES: Final = {
    "all_to_all": CommOp.POOLED_EMBEDDINGS_ALL_TO_ALL.name,
    "reduce_scatter": CommOp.POOLED_EMBEDDINGS_REDUCE_SCATTER.name,
    "sequence": CommOp.SEQUENCE_EMBEDDINGS_ALL_TO_ALL.name,
}
_BY_TYPE: Final = {
    f"torch.{name}": Precision(kind) for name, kind in settings.WORDS["codecs"].items()
}
"""Codecs of which only the element type on the wire is known; one byte is assumed to have no scale.
"""
_BY_SIZE: Final = {4.0: Precision.FP32, 2.0: Precision.FP16, 1.0: Precision.FP8}
_WITH_ROWS: Final = (Precision.FP8, Precision.MX4)


def communication_of(sharder: ModuleSharder[nn.Module] | SharderData) -> Communication | None:
    """The codecs that a sharder gives to the modules that it shards; None if it has none.

    FBGEMM's codecs have a precision and rows. For other codecs the element type on the wire counts,
    as in TorchRec's estimates; an unknown type counts as fp32. TorchRec's snapshots of sharders
    (``SharderData``) have only the sizes of element types.
    """
    sizes = getattr(sharder, "qcomm_dtype_sizes", None)
    given = sizes or getattr(sharder, "qcomm_codecs_registry", None) or {}
    found = {key: given[name] for key, name in _EXCHANGES.items() if given.get(name) is not None}
    return Communication(**{key: _codecs(both) for key, both in found.items()}) if given else None


def unknown_codecs(sharder: ModuleSharder[nn.Module]) -> list[str]:
    """The element types of a sharder's codecs that cannot be priced."""
    registry = getattr(sharder, "qcomm_codecs_registry", None) or {}
    both = [codecs for name, codecs in registry.items() if name in _EXCHANGES.values()]
    types = {str(c.quantized_dtype) for codecs in both for c in (codecs.forward, codecs.backward)}
    return sorted(types - set(_BY_TYPE))


def _codecs(both: Any) -> Codecs:
    """The codecs of both ways, or the sizes of their elements."""
    forward, backward = both if isinstance(both, Iterable) else (both.forward, both.backward)
    return Codecs(forward=_codec(forward), backward=_codec(backward))


def _codec(codec: Any) -> Codec:
    if isinstance(codec, Real):
        return Codec(precision=_BY_SIZE.get(float(codec), Precision.FP32))
    named, rows = private.codec_rows(codec)
    if named in {p.value for p in Precision}:
        precision = Precision(named)
        return Codec(precision=precision, row_dim=max(rows, 0) if precision in _WITH_ROWS else 0)
    return Codec(precision=_BY_TYPE.get(str(codec.quantized_dtype), Precision.FP32))


def row_to_fill(table: Table, batch_size: int) -> int:
    """The elements of a codec's row, if a rank may send only a part of a row; otherwise 0.

    A row are the elements that a codec scales together. FBGEMM cuts everything that a rank sends to
    another into rows: ``batch_size`` times its columns, or any number of unpooled vectors. The
    result is 0 if every rank sends whole rows, however its tables are cut.
    """
    pooled = table.pooling is not Pooling.NONE
    codecs = table.codecs.exchange(sums=False, is_pooled=pooled)
    rows = {codec.scaled_together for codec in (codecs.forward, codecs.backward)}
    unit = COLUMN_MULTIPLE * (batch_size if pooled else 1)
    return max((row for row in rows if row and unit % row), default=0)


OPTIMIZERS: Final = {
    n: Optimizer(kind) for kind, own in settings.WORDS["optimizers"].items() for n in own
}

UNKNOWN_AS: Final = Optimizer.ADAGRAD
"""An unknown optimizer is planned as this one, with one state for each weight, which is what
TorchRec's planner counts for a class that it does not know (``_get_optimizer_multipler``)."""


def optimizer_name(entry: TableSource) -> str:
    """The optimizer of one table, as TorchRec finds it.

    It is the first of these that exists: what ``apply_optimizer_in_backward`` has left on the
    parameter; the optimizer that a fused module was made with; the one in the sharder's
    ``fused_params``; FBGEMM's default, SGD.

    Raises:
        InvalidInputError: the optimizer of the sharder is none of FBGEMM's.
    """
    if classes := private.optimizer_classes(entry.parameter):
        return _name_of(classes[0])
    own = getattr(entry.module, "optimizer_type", None)
    if callable(own):
        return _name_of(own())
    chosen = settings.fused_setting(entry.sharder, "optimizer")
    if not isinstance(chosen, Enum | None):
        refuse(settings.said("optimizer of a sharder", given=shown(chosen)))
    return "sgd" if chosen is None else str(chosen.value).lower()


def _name_of(kind: type[object]) -> str:
    """The name of an optimizer's class in lower case, or of its nearest known base class."""
    names = [base.__name__.lower() for base in kind.__mro__]
    return next(filter(optimizer_kind, names), names[0])


def optimizer_kind(name: str) -> Optimizer | None:
    """The optimizer of a name without FBGEMM's "exact", which says how it updates; or None."""
    return OPTIMIZERS.get(name.removeprefix("exact_").replace("_", ""))


def sources_of(
    module: nn.Module,
    sharders: Sequence[ModuleSharder[nn.Module]],
    given: Mapping[str, ParameterConstraints],
) -> Iterator[TableSource | str]:
    """The tables that TorchRec would shard, in model order.

    In the place of the tables of a module whose tables cannot be planned there is a line that says
    so.
    """
    by_type = {sharder_name(s.module_type): s for s in sharders}
    stack: list[tuple[str, nn.Module]] = [("", module)]
    while stack:
        path, owner = stack.pop()
        sharder = by_type.get(sharder_name(type(owner)))
        parameters = sharder.shardable_parameters(owner) if sharder is not None else {}
        configs = table_configs(owner) if parameters else None
        if not parameters:
            children = reversed(list(owner.named_children()))
            stack += [(f"{path}.{name}" if path else name, child) for name, child in children]
        elif configs is None:
            yield settings.said("unknown module", path=path, kind=type(owner).__name__)
        else:
            for name, parameter in parameters.items():
                limit = given.get(name, settings.NO_LIMIT)
                yield TableSource(path, name, owner, parameter, sharder, configs[name], limit)


def table_configs(owner: nn.Module) -> dict[str, Any] | None:
    """The table configurations of a module, or of the collections that it wraps, by name.

    A plain ``nn.EmbeddingBag`` has one, with its own shape and its parameter's name.
    """
    if isinstance(owner, nn.EmbeddingBag):
        types = embedding_configs.PoolingType
        config = embedding_configs.EmbeddingBagConfig(
            name="weight",
            num_embeddings=owner.num_embeddings,
            embedding_dim=owner.embedding_dim,
            feature_names=["weight"],  # its only feature has the table's name
            data_type=embedding_configs.dtype_to_data_type(owner.weight.dtype),
            pooling=types.MEAN if owner.mode == "mean" else types.SUM,
        )
        return {"weight": config}
    towers = list(owner.towers) if isinstance(owner, EmbeddingTowerCollection) else []
    inner = [getattr(owner, n, None) for n in private.WRAPPED] + [t.embedding for t in towers]
    found: dict[str, Any] = {}
    for candidate in (owner, *inner):
        for method in ("embedding_bag_configs", "embedding_configs"):
            if configs := getattr(candidate, method, None):
                found |= {c.name: c for c in configs()}
                break
        if found and not towers:
            break
    return found or None


def bucket_problems(entry: ShardableTable, world_size: int) -> list[str]:
    """Why the rows of a managed-collision table cannot be cut for the ranks; empty if they can.

    Such a table is cut by rows, and TorchRec's runtime needs every cut to be between two buckets.
    """
    if not isinstance(entry.module, BaseManagedCollisionEmbeddingCollection):
        return []
    buckets = int(private.collision_buckets(entry.module).get(entry.parameter_name) or 1)
    rows = entry.table.num_embeddings
    block, size = -(-rows // world_size), max(rows // buckets, 1)
    parted = any(min(rank * block, rows) % size for rank in range(world_size))
    if not parted or buckets == 1 or buckets % world_size == 0 or rows % buckets:
        return []
    return [settings.said("buckets", entry=entry, buckets=buckets, ranks=world_size)]


DENSE_BYTES_PER_PARAMETER_BYTE: Final = 6.0
"""Bytes of memory for each byte of parameters of a dense part of unknown shape: once for the
parameters, twice for the optimizer, three times for DDP (TorchRec 1.8,
``HeuristicalStorageReservation``)."""


def dense_arch(module: nn.Module) -> nouns.DenseArch | None:
    """The dense part of the first DLRM inside a model; None if there is no DLRM.

    Plain, projection and DCN interactions are known; the projection model counts as a plain one.
    """
    model = next((m for m in module.modules() if isinstance(m, DLRM)), None)
    if model is None:
        return None
    bottom, top = (
        [m for m in part.modules() if isinstance(m, nn.Linear)]
        for part in (model.dense_arch, model.over_arch)
    )
    is_cross = isinstance(model, DLRM_DCN)
    layers, rank = (private.cross_layers(model.inter_arch.crossnet) if is_cross else None) or (0, 0)
    return nouns.DenseArch(
        num_dense_features=bottom[0].in_features,
        bottom_mlp=tuple(layer.out_features for layer in bottom),
        top_mlp=tuple(layer.out_features for layer in top),
        interaction=nouns.Interaction.DCN if is_cross else nouns.Interaction.DOT,
        dcn_num_layers=layers,
        dcn_low_rank_dim=rank,
    )


def dense_reserve_bytes(module: nn.Module, sharded: Sequence[nn.Parameter]) -> float:
    """Bytes per rank for all parameters except the sharded ones, with their optimizer and DDP."""
    skip = {id(p) for p in sharded}
    plain = (p for p in module.parameters() if id(p) not in skip and not is_lazy(p))
    return DENSE_BYTES_PER_PARAMETER_BYTE * sum(p.numel() * p.element_size() for p in plain)
