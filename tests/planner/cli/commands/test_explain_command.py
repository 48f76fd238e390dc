"""``explain`` as people type it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.planner.cli.command_line import Run


def test_explain_tells_of_the_plan_its_tables_and_its_constraints(
    run: Run, workload_file: Path, system_file: Path, tmp_path: Path
) -> None:
    """Each form prints its tables; JSON holds raw figures."""
    done = run(
        "plan",
        workload_file,
        "--system",
        system_file,
        "--evaluations",
        20,
        "-o",
        tmp_path / "run",
        "-q",
    )
    assert done.code == 0
    asked = ("explain", workload_file, tmp_path / "run" / "plan.json", "--system", system_file)
    whole = run(*asked)
    assert whole.code == 0
    assert "What the iteration" in whole.out
    assert "Best change of each single table" in whole.out
    table = json.loads(run(*asked, "--table", "user", "--json").out)
    (told,) = table["tables"]
    assert sum(o["is_chosen"] for o in told["options"]) == 1
    assert table["plan_time_s"] > 0
    prices = run(*asked, "--prices", "--time-limit", "0.1s")
    assert prices.code == 0
    assert "one GiB more per rank" in prices.out
    wrong = run(*asked, "--table", "usr")
    assert wrong.code == 2
    assert "did you mean" in wrong.err
    unused = run(*asked, "--time-limit", "0.1s")
    assert unused.code == 2
    assert "--time-limit needs --prices" in unused.err


def test_prices_are_also_of_constraints_in_a_file_of_their_own(
    run: Run, workload_file: Path, system_file: Path, tmp_path: Path
) -> None:
    """The same file that ``plan`` takes."""
    rules = tmp_path / "rules.yaml"
    rules.write_text("constraints:\n  - {tables: user, sharding_types: [row_wise]}\n")
    given = ("--system", system_file, "--constraints", rules)
    assert (
        run("plan", workload_file, *given, "--evaluations", 8, "-o", tmp_path / "run", "-q").code
        == 0
    )
    asked = ("explain", workload_file, tmp_path / "run" / "plan.json", *given)
    done = run(*asked, "--prices", "--time-limit", "0.1s", "--json")
    assert done.code == 0, done.err
    assert "user: row_wise" in {c["constraint"] for c in json.loads(done.out)["constraints"]}
    assert run(*asked[:-1], tmp_path / "none.yaml").code == 2


def test_what_a_plan_was_made_for_and_is_not_explained_is_named(
    run: Run, workload_file: Path, system_file: Path, tmp_path: Path
) -> None:
    """Another objective, scenarios, and inputs that the file does not hold."""
    made = ("plan", workload_file, "--system", system_file, "--evaluations", 8, "-q")
    more = ("--objective", "phases", "--scenario", workload_file, "-o", tmp_path / "run")
    assert run(*made, *more).code == 0
    asked = ("explain", workload_file, tmp_path / "run" / "plan.json")
    done = run(*asked, "--system", system_file, "--table", "user")
    assert "the objective 'worst phases' and 1 scenario beside the workload" in done.err
    other = tmp_path / "other"
    assert run(*made, "--set", "dense.top_mlp=[2048,2048,1]", "-o", other).code == 0
    plan = json.loads((other / "plan.json").read_text())
    plan["system"], plan["system_hash"] = str(system_file), None
    (other / "plan.json").write_text(json.dumps(plan))
    otherwise = run("explain", workload_file, other / "plan.json", "--table", "user")
    assert "other index laws, tables or training" in otherwise.err


def test_limits_that_the_plan_breaks_are_named_one_by_one(
    run: Run, workload_file: Path, system_file: Path, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("constraints:\n  - {tables: '*', sharding_types: [table_wise], ranks: [1]}\n")
    made = ("plan", workload_file, "--system", system_file, "--evaluations", 8, "-q")
    assert run(*made, "--constraints", rules, "-o", tmp_path / "run").code == 0
    rules.write_text(
        "constraints:\n"
        "  - {max_tables_per_rank: 2}\n"
        "  - {max_tables_per_host: 20}\n"
        "  - {apart: [user, item]}\n"
        "  - {device_memory: 1.1 GiB, ranks: [0]}\n"
        "  - {device_memory: 1 GiB, ranks: [1]}\n"
    )
    asked = ("explain", workload_file, tmp_path / "run" / "plan.json", "--system", system_file)
    told = run(*asked, "--table", "user", "--constraints", rules).err
    assert "tables do not lie as max_tables_per_rank 2 asks" in told
    assert "tables do not lie as apart [user, item] on different ranks asks" in told
    assert "over device_memory 1 GiB on ranks 1" in told
    assert "max_tables_per_host" not in told
    assert "ranks 0" not in told
