"""Price two plans of one model by the same cost models and see why one is slower.

The first plan puts every table on a rank by itself, round robin, as one might by hand; the second
comes from the planner.
"""

from __future__ import annotations

from costmodels.distribution.zipf import Zipf
from costmodels.sharding import ComputeKernel, Plan, ShardingOption, ShardingType, place
from costmodels.topology import Topology
from costmodels.units import MS
from costmodels.workload import Feature, Table, Workload
from planner import compare, load_system, plan


def make_workload() -> Workload:
    """Twelve tables, each half as large and twice as busy as the one before."""
    tables = []
    for i in range(12):
        rows = 40_000_000 // 2**i
        tables.append(
            Table(
                name=f"table_{i}",
                num_embeddings=rows,
                embedding_dim=128,
                features=(Feature(name=f"feature_{i}", pooling_factor=float(min(2**i, 64))),),
                distribution=Zipf(num_embeddings=rows, exponent=1.05),
            )
        )
    return Workload(name="twelve_tables", tables=tuple(tables), batch_size_per_rank=4096)


def round_robin(workload: Workload, topology: Topology) -> Plan:
    """Each table whole on one rank, one after the other."""
    placements = []
    for i, table in enumerate(workload.tables):
        option = ShardingOption(
            table=table.name,
            sharding_type=ShardingType.TABLE_WISE,
            kernel=ComputeKernel.FUSED,
            column_widths=(table.embedding_dim,),
        )
        placements.append(
            place(
                option,
                table.num_embeddings,
                (i % topology.world_size,),
                world_size=topology.world_size,
                local_world_size=topology.local_world_size,
            )
        )
    return Plan(placements=tuple(placements))


def main() -> None:
    """Plan, compare, and print both plans stage by stage."""
    workload = make_workload()
    topology = load_system("a100_80gb_sxm", gpus=8)
    found = plan(workload, topology, max_evaluations=200).plan
    by_hand = round_robin(workload, topology)

    slow, fast = compare(workload, topology, {"by hand": by_hand, "planner": found})

    for candidate in (slow, fast):
        estimate = candidate.estimate
        print(
            f"{candidate.name:<8} {estimate.time.time_s / MS:6.2f} ms/iteration, "
            f"worst/mean rank {estimate.imbalance_ratio:.2f}"
        )
    print(f"{'slowest rank of each stage':<32} {slow.name:>10} {fast.name:>10}")
    before, after = (
        {stage.name: max(stage.duration_s) for stage in candidate.estimate.stages}
        for candidate in (slow, fast)
    )
    for stage in dict.fromkeys([*before, *after]):
        print(f"{stage:<32} {before.get(stage, 0) / MS:7.3f} ms {after.get(stage, 0) / MS:7.3f} ms")


if __name__ == "__main__":
    main()
