"""Which sharding plan makes a training iteration fastest?

Each public name is loaded from its module when it is first used, so that importing the package
costs nothing.

Example:
    >>> from planner import load_system, load_workload, plan
    >>> workload, system = load_workload("small_demo"), load_system("h100_sxm", gpus=8)
    >>> result = plan(workload, system, max_evaluations=50)
    >>> result.bound <= result.estimate.time.time_s
    True
"""

from typing import TYPE_CHECKING

from planner.support import load_lazily

if TYPE_CHECKING:
    from costmodels.distribution.uniform import Uniform as Uniform
    from costmodels.distribution.zipf import Zipf as Zipf
    from costmodels.workload import Feature as Feature
    from costmodels.workload import Table as Table
    from costmodels.workload import Workload as Workload
    from planner.api import compare as compare
    from planner.api import estimate as estimate
    from planner.api import plan as plan
    from planner.api import solve as solve
    from planner.errors import InfeasibleError as InfeasibleError
    from planner.errors import InvalidInputError as InvalidInputError
    from planner.errors import NoPlanFoundError as NoPlanFoundError
    from planner.errors import PlannerError as PlannerError
    from planner.errors import StoppedError as StoppedError
    from planner.io import load_constraints as load_constraints
    from planner.io import load_plan as load_plan
    from planner.io import load_problem as load_problem
    from planner.io import load_system as load_system
    from planner.io import load_workload as load_workload
    from planner.io import load_workload_file as load_workload_file
    from planner.io import save_plan as save_plan
    from planner.io import workload_from_dataframe as workload_from_dataframe
    from planner.problem import Constraints as Constraints
    from planner.problem import CountLimit as CountLimit
    from planner.problem import MemoryLimit as MemoryLimit
    from planner.problem import MoveLimit as MoveLimit
    from planner.problem import PlanningProblem as PlanningProblem
    from planner.problem import TableConstraint as TableConstraint
    from planner.problem import TableGroup as TableGroup
    from planner.result import PlanningResult as PlanningResult
    from planner.settings import SearchSettings as SearchSettings

load_lazily(globals())
