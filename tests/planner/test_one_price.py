"""Every way to a price gives the same one, on every shipped system."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from costmodels.errors import InvalidValueError
from costmodels.pipeline import CostPipeline
from costmodels.topology import Measurements
from planner import estimate, load_plan, load_system, load_workload, save_plan
from planner.api import compare
from planner.cli.run import run
from planner.io.library import names
from planner.problem import PlanningProblem
from planner.solving.prepare import prepare
