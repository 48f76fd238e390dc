"""Reads and writes files. Every error is an ``InvalidInputError`` that lists all problems at once.

Each name is loaded from its module when it is first used. A process that reads one kind of file
does not wait for the schemas of the others, and a process that only searches loads none of them.
"""

from typing import TYPE_CHECKING

from planner.support import load_lazily

if TYPE_CHECKING:
    from planner.io.constraints import constraints_json_schema as constraints_json_schema
    from planner.io.constraints import load_constraints as load_constraints
    from planner.io.documents import names as names
    from planner.io.documents import read_template as read_template
    from planner.io.plan.plan_file import SavedPlan as SavedPlan
    from planner.io.plan.plan_file import load_plan as load_plan
    from planner.io.plan.plan_file import plan_json_schema as plan_json_schema
    from planner.io.plan.result_json import plan_text as plan_text
    from planner.io.plan.result_json import reshard_text as reshard_text
    from planner.io.plan.result_json import result_to_json as result_to_json
    from planner.io.plan.result_json import save_plan as save_plan
    from planner.io.plan.result_json import system_hash as system_hash
    from planner.io.plan.result_json import workload_hash as workload_hash
    from planner.io.system.system_file import load_smallest as load_smallest
    from planner.io.system.system_file import load_system as load_system
    from planner.io.system.system_file import system_json_schema as system_json_schema
    from planner.io.workload.starter import workload_from_dataframe as workload_from_dataframe
    from planner.io.workload.workload_file import WorkloadFile as WorkloadFile
    from planner.io.workload.workload_file import load_problem as load_problem
    from planner.io.workload.workload_file import load_workload as load_workload
    from planner.io.workload.workload_file import load_workload_file as load_workload_file
    from planner.io.workload.workload_file import workload_json_schema as workload_json_schema

load_lazily(globals())
