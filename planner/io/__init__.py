"""Files in and out. Every error is an ``InvalidInputError`` that lists all problems at once."""

from planner.io.atomic import write_text_atomic
from planner.io.constraint_file import constraints_json_schema, load_constraints
from planner.io.dataframe import workload_from_dataframe
from planner.io.library import names, read_template
from planner.io.plan.plan_file import SavedPlan, load_plan, plan_from_json, plan_json_schema
from planner.io.plan.reshard_file import reshard_text
from planner.io.plan.result_json import plan_text, result_to_json, save_plan
from planner.io.problem_file import load_problem
from planner.io.system.system_file import load_system, system_json_schema
from planner.io.workload.workload_file import (
    WorkloadFile,
    load_workload,
    load_workload_file,
    workload_json_schema,
)

__all__ = [
    "SavedPlan",
    "WorkloadFile",
    "constraints_json_schema",
    "load_constraints",
    "load_plan",
    "load_problem",
    "load_system",
    "load_workload",
    "load_workload_file",
    "names",
    "plan_from_json",
    "plan_json_schema",
    "plan_text",
    "read_template",
    "reshard_text",
    "result_to_json",
    "save_plan",
    "system_json_schema",
    "workload_from_dataframe",
    "workload_json_schema",
    "write_text_atomic",
]
