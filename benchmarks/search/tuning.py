"""What Optuna adds to one search: the usual setup against the best of a study.

Each case is planned once as ``shardplan plan`` does, and by studies that may tune one thing each:
pipeline, cache load factors, or 2D groups. Equal trial budgets; the same seeds.

    python benchmarks/search/tuning.py
"""

from __future__ import annotations

from dataclasses import replace

from costmodels.workload import Pipeline
from planner import load_system, load_workload
from planner.problem import PlanningProblem
from planner.tuning import Effort, SetupChoices, Study, menu_of

CASES = (
    ("dlrm_dcnv2_mlperf", "a100_40gb_sxm", 2),
    ("dlrm_dcnv2_mlperf", "a100_80gb_sxm", 8),
    ("dlrm_dcnv2_mlperf", "h100_sxm", 64),
)
EFFORT = Effort(trials=24, trial_limit_s=3.0)
SYNC_INTERVAL = 20


def variants(problem: PlanningProblem) -> dict[str, SetupChoices]:
    """Menus in which one thing is free."""
    whole = menu_of(problem, groups=True, sync_interval=SYNC_INTERVAL)
    fixed = replace(
        whole,
        pipelines=(Pipeline.SPARSE_DIST,),
        group_sizes=whole.group_sizes[:1],
        min_column_widths=(4,),
        tunes_cache=False,
    )
    menus = {
        "usual setup": fixed,
        "pipeline": replace(fixed, pipelines=whole.pipelines),
        "column widths": replace(fixed, min_column_widths=whole.min_column_widths),
        "2D groups": replace(fixed, group_sizes=whole.group_sizes),
        "everything": whole,
    }
    if whole.tunes_cache:
        menus["cache load factors"] = replace(fixed, tunes_cache=True)
    return menus


def main() -> None:
    """Print a line per case and menu."""
    print(f"{'case':34} {'free to choose':20} {'iteration':>10} {'gain':>8}")
    for workload, system, gpus in CASES:
        problem = PlanningProblem(
            workload=load_workload(workload), topology=load_system(system, gpus=gpus)
        )
        usual_s = None
        for name, menu in variants(problem).items():
            effort = replace(EFFORT, trials=1) if name == "usual setup" else EFFORT
            study = Study(problem, menu, effort)
            study.run()
            best_s = study.best().value_s
            usual_s = usual_s or best_s
            case = f"{workload} {gpus} x {system}"
            gain = f"{100 * (usual_s / best_s - 1):+.1f} %"
            print(f"{case:34} {name:20} {1e3 * best_s:7.3f} ms {gain:>8}", flush=True)


if __name__ == "__main__":
    main()
