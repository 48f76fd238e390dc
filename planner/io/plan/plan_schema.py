"""The keys of ``plan.json``: TorchRec's serialized plan, and ours beside it."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from costmodels.sharding import ComputeKernel, ShardingType

SCHEMA_VERSION: Final = 1

Count = Annotated[int, Field(ge=0)]
Pair = Annotated[list[Count], Field(min_length=2, max_length=2)]
Seconds = Annotated[float, Field(ge=0)]


class _Loose(BaseModel):
    """TorchRec and later versions may add keys; known ones are read strictly."""

    model_config = ConfigDict(
        defer_build=True, extra="ignore", strict=True, allow_inf_nan=False, frozen=True
    )


class ShardSchema(_Loose):
    """One shard of one table: ``[row, column]`` where it begins and how large it is."""

    shard_offsets: Pair
    shard_sizes: Pair
    placement: Annotated[str, Field(pattern=r"^rank:[0-9]{1,9}/\S+$")]


class CacheParamsSchema(_Loose):
    """TorchRec's cache parameters, as some tools write them."""

    load_factor: Annotated[float, Field(gt=0, lt=1)] | None = None


class ParameterSchema(_Loose):
    """One table. TorchRec writes no shards for replicated tables, and no load factor."""

    sharding_type: Annotated[ShardingType, Field(strict=False)]
    compute_kernel: Annotated[ComputeKernel, Field(strict=False)]
    ranks: list[Count] | None = None
    shards: list[ShardSchema] | None = None
    cache_load_factor: Annotated[float, Field(gt=0, lt=1)] | None = None
    cache_params: CacheParamsSchema | None = None


class PredictedSchema(_Loose):
    """What an iteration costs. Null stands for what is not finite."""

    iteration_time_s: Seconds
    low_s: Seconds
    high_s: Seconds
    confidence: float
    source: str
    samples_per_s: float | None
    slowest_rank: Count
    imbalance_ratio: float | None
    exposed_communication_s: Seconds
    critical_path: list[dict[str, Any]]
    per_rank: list[dict[str, Any]]


class MemorySchema(_Loose):
    """Bytes per rank by purpose, and per host."""

    per_rank: list[dict[str, Any]]
    per_host: list[dict[str, Any]]


class SolverSchema(_Loose):
    """How the search went. ``seconds`` is null unless the clock or the user ended it.

    ``objective`` begins with ``worst`` or ``mean`` where scenarios count. Strategy ``given``: the
    plan was not searched for; ``value`` is its price all the same. ``work`` is all that the search
    did, in priced plans.
    """

    strategy: str
    objective: str
    status: str
    value: float | None
    bound: float | None
    gap_ratio: float | None
    separable_value: float | None = None
    balanced_value: float | None = None
    seconds: float | None
    seed: int
    evaluations: Count
    work: Count | None = None
    torchrec_defaults: bool = False


class WholeSchema(_Loose):
    """All ranks of a job, of which a plan is for one group with a copy of the tables."""

    world_size: Annotated[int, Field(ge=1, le=10**6)]
    local_world_size: Annotated[int, Field(ge=1, le=10**6)]


class PlanSchema(_Loose):
    """The whole file; only ``plan`` is needed, which is what TorchRec itself writes."""

    plan: dict[str, dict[str, ParameterSchema]]
    schema_version: Annotated[int, Field(ge=1)] = SCHEMA_VERSION
    tool: str | None = None
    inputs_hash: str | None = None
    workload: str | None = None
    workload_hash: str | None = None
    system: str | None = None
    system_hash: str | None = None
    world_size: Annotated[int, Field(ge=1, le=10**6)] | None = None
    local_world_size: Annotated[int, Field(ge=1, le=10**6)] | None = None
    whole: WholeSchema | None = None
    batch_size_per_rank: Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0)] | None = None
    pipeline: str | None = None
    predicted: PredictedSchema | None = None
    memory: MemorySchema | None = None
    solver: SolverSchema | None = None
    searched: list[str] = Field(default_factory=list)
    usd_per_billion_samples: float | None = None
    reshard: dict[str, Any] | None = None
    curve: list[dict[str, Any]] = Field(default_factory=list)
    checkpoint_interval_s: float | None = None
    blocked: dict[str, Any] | None = None
    scenarios: list[dict[str, Any]] = Field(default_factory=list)
    alternatives: list[dict[str, Any]] = Field(default_factory=list)
    baselines: list[dict[str, Any]] = Field(default_factory=list)
    unfit_baselines: list[str] = Field(default_factory=list)
    provenance: list[dict[str, Any]] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)
