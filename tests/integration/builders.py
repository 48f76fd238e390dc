"""Small nouns for the tests of the TorchRec adapter: two hosts of four ranks, tables of 10 rows."""

from __future__ import annotations

from costmodels.sharding import ComputeKernel, ShardingOption, ShardingType, TablePlacement, place
from costmodels.topology import Topology
from costmodels.workload import Table
from tests import strategies


def make_topology(num_hosts: int = 2, local: int = 4, domain: int | None = None) -> Topology:
    return strategies.make_topology(num_hosts, local, domain_hosts=(domain or local) // local)


def make_table(name: str = "t", rows: int = 10, dim: int = 16, **changes: object) -> Table:
    return strategies.make_table(name, num_embeddings=rows, embedding_dim=dim, **changes)


def placed(
    sharding_type: ShardingType,
    where: tuple[int, ...] = (),
    *,
    table: Table | None = None,
    kernel: ComputeKernel | None = None,
    widths: tuple[int, ...] | None = None,
    local: int = 4,
    world: int = 8,
    ratio: float | None = None,
) -> TablePlacement:
    table = table or make_table()
    replicated = sharding_type is ShardingType.DATA_PARALLEL
    default = ComputeKernel.DENSE if replicated else ComputeKernel.FUSED
    option = ShardingOption(
        table=table.name,
        sharding_type=sharding_type,
        kernel=kernel or default,
        column_widths=widths or (table.embedding_dim,),
        cache_load_factor_ratio=ratio,
    )
    return place(option, table.num_embeddings, where, world_size=world, local_world_size=local)
