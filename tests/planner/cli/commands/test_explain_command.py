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
        60,
        "-o",
        tmp_path / "run",
        "-q",
    )
    assert done.code == 0
    asked = ("explain", workload_file, tmp_path / "run" / "plan.json", "--system", system_file)
    whole = run(*asked)
    assert whole.code == 0
    assert "What the iteration" in whole.out
    assert "Best change of one table alone" in whole.out
    table = json.loads(run(*asked, "--table", "user", "--json").out)
    (told,) = table["tables"]
    assert sum(o["is_chosen"] for o in told["options"]) == 1
    assert table["plan_time_s"] > 0
    prices = run(*asked, "--prices", "--time-limit", "0.2s")
    assert prices.code == 0
    assert "one GiB more per rank" in prices.out
    wrong = run(*asked, "--table", "usr")
    assert wrong.code == 2
    assert "did you mean" in wrong.err
    for other in (("--table", "user"), ("--prices",)):
        idle = run(*asked, "--changes", 3, *other)
        assert idle.code == 2
        assert "--changes counts changes that" in idle.err
    unused = run(*asked, "--time-limit", "0.2s")
    assert unused.code == 2
    assert "--time-limit limits the searches of --prices" in unused.err


def test_prices_are_also_of_constraints_in_a_file_of_their_own(
    run: Run, workload_file: Path, system_file: Path, tmp_path: Path
) -> None:
    """The same file that ``plan`` takes."""
    rules = tmp_path / "rules.yaml"
    rules.write_text("constraints:\n  - {tables: user, sharding_types: [row_wise]}\n")
    given = ("--system", system_file, "--constraints", rules)
    assert (
        run("plan", workload_file, *given, "--evaluations", 60, "-o", tmp_path / "run", "-q").code
        == 0
    )
    asked = ("explain", workload_file, tmp_path / "run" / "plan.json", *given)
    done = run(*asked, "--prices", "--time-limit", "0.2s", "--json")
    assert done.code == 0, done.err
    assert "user: row_wise" in {c["constraint"] for c in json.loads(done.out)["constraints"]}
    assert run(*asked[:-1], tmp_path / "none.yaml").code == 2
