"""2D parallelism: finds how many ranks should share one copy of the tables.

``DMPCollection`` shards the tables over groups of ranks. Every group has a whole copy, and
``sync()`` averages weights and optimizer state over the copies after a number of steps. With fewer
ranks per group, exchanges are faster, but ranks hold more bytes and syncs take longer. Every group
size is planned, its sync is priced, and the choices are sorted by time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import ShardingPlan

from costmodels.system_models import sync_time_s
from costmodels.topology import Topology
from planner import api
from planner.errors import InfeasibleError, NoPlanFoundError, refuse
from planner.integrations.torchrec_plan import to_sharding_plan
from planner.integrations.torchrec_workload import ModelDescription
from planner.integrations.translate import pricing, settings
from planner.models import pipeline_of
from planner.problem import PlanningProblem
from planner.result import PlanningResult
from planner.rules.placement_rules import group_problem
from planner.settings import SearchSettings
from planner.space.budget import default_work_s, priced_plans


@dataclass(frozen=True, kw_only=True)
class GroupChoice:
    """One way to divide the ranks into groups, with its plan.

    ``sharding_group_size``, ``use_inter_host_allreduce`` and ``node_group_size`` (ranks of a group
    on one host) are arguments of ``DMPCollection``. ``sync_s`` are the seconds of one sync of all
    copies; ``time_s`` those of an iteration with its share of the sync.
    """

    sharding_group_size: int
    num_copies: int
    use_inter_host_allreduce: bool
    node_group_size: int
    result: PlanningResult
    sync_s: float
    time_s: float

    def sharding_plan(
        self, constraints: Mapping[str, ParameterConstraints] | None = None
    ) -> ShardingPlan:
        """The plan of one group for ``DMPCollection``, on ranks 0 to the group's size."""
        return to_sharding_plan(
            self.result.plan,
            self.result.problem.workload,
            compute_device="cuda",
            local_world_size=self.node_group_size,
            constraints=constraints,
        )


def group_choices(
    model: ModelDescription,
    topology: Topology,
    *,
    sync_interval: int,
    sizes: Sequence[int] = (),
    time_limit_s: float = 5.0,
) -> list[GroupChoice]:
    """Plan every group size; returns those that fit, the fastest first.

    Args:
        model: the result of ``describe_model`` for the module and its sharders.
        topology: all ranks of the job, as one of our systems.
        sync_interval: steps from one sync to the next.
        sizes: ranks per group to try; empty for all divisors of the number of ranks.
        time_limit_s: nominal seconds of search for each size. They are counted in work, so that a
            busy machine finds the same plans, only later.

    Raises:
        InvalidInputError: a size does not divide the number of ranks, the interval is below 1, or
            there is a key-value table.
        InfeasibleError: no size fits.
    """
    world = topology.world_size
    if any(s < 1 or world % s for s in sizes) or sync_interval < 1:
        refuse(settings.said("groups", ranks=world, sizes=list(sizes), interval=sync_interval))
    pricing.refuse_key_values(model.key_values, "a choice of group sizes")
    workload = model.workload
    whole = PlanningProblem(workload=workload, topology=topology, constraints=model.constraints)
    found, failed = list[GroupChoice](), list[InfeasibleError]()
    for size, between_hosts in _layouts(topology, sizes):
        try:
            problem = group_problem(whole, size, between_hosts=between_hosts)
            if problem is None:
                continue
            work_s = default_work_s(len(workload.tables), problem.topology.world_size, time_limit_s)
            most = priced_plans(work_s, pipeline_of(problem))
            result = api.solve(problem, search=SearchSettings(max_evaluations=most))
        except (InfeasibleError, NoPlanFoundError) as error:
            failed += [error] if isinstance(error, InfeasibleError) else []
            continue
        sync_s = sync_time_s(topology, size, result.best.memory, between_hosts=between_hosts)
        found.append(
            GroupChoice(
                sharding_group_size=size,
                num_copies=world // size,
                use_inter_host_allreduce=between_hosts,
                node_group_size=problem.topology.local_world_size,
                result=result,
                sync_s=sync_s,
                time_s=result.estimate.time.time_s + sync_s / sync_interval,
            )
        )
    if failed and not found:
        raise failed[-1]
    return sorted(found, key=lambda c: c.time_s)


def _layouts(topology: Topology, sizes: Sequence[int]) -> Iterator[tuple[int, bool]]:
    """Each size of a group, and whether copies are summed between hosts.

    Interleaved groups have ranks on every host; blocks of ranks are whole hosts' copies.
    """
    world, local = topology.world_size, topology.local_world_size
    for size in sizes or [s for s in range(1, world + 1) if world % s == 0]:
        copies = world // size
        blocks = topology.num_hosts > 1 and copies > 1
        yield from ((size, b) for b in [False] * (local % copies == 0) + [True] * blocks)
