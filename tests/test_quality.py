"""The one door: every check of the code that is not a test of behaviour runs here."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import tokenize
import types
import typing
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

import costmodels

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("costmodels", "planner")

MAX_FILE_LINES = 700
MAX_FUNCTION_LINES = 60
MAX_FOLDER_FILES = 20
NO_CODE = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    | {tokenize.ENDMARKER}
)
MAX_CODE_LINES = {
    "costmodels": 11_600,
    "planner": 1_200,
    "planner/cli": 3_600,
    "planner/drift": 250,
    "planner/explain": 250,
    "planner/fit": 300,
    "planner/integrations": 4_950,
    "planner/io": 4_300,
    "planner/objectives": 200,
    "planner/options": 1_150,
    "planner/predict": 450,
    "planner/profiling": 1_150,
    "planner/report": 1_600,
    "planner/rules": 400,
    "planner/search": 4_200,
    "planner/solving": 700,
    "planner/space": 500,
    "planner/study": 1_350,
    "planner/support": 400,
    "planner/trace": 500,
    "planner/validation": 950,
}
"""Lines of code that each room may have: lowered as the code gets shorter, never raised without a
reason in ARCHITECTURE.md."""
MAX_TOTAL_CODE_LINES = 39_550
MAX_FILES = 279
"""Of both packages; the same holds."""

HEAVY_MODULES = ("torch", "torchrec", "fbgemm_gpu", "optuna", "ortools", "sklearn", "pandas")

UNIT_SUFFIX = re.compile(
    r"_(bytes|s|flops|ratio|usd)$"
    r"|_per_(s|hour|row|sample|index)(_usd)?$"
)
COUNT_PREFIX = "num_"
UNITLESS_NAMES = frozenset(
    {
        "batch_size_per_rank",  # samples, of which ranks that share layers may have a half
        "pooling_factor",  # mean indices per sample
        "embedding_dim",
        "exponent",  # of a Zipf law
        "shift",  # of a Zipf law, in ranks
        "rows",  # per frequency bin, as in costmodels.distribution
        "probability",  # of one row of a bin
        "draws",  # of a table in one batch
        "counts",  # columns of a design matrix: how often each cost is paid
        "forward",  # the same, of a forward lookup
        "backward",  # the same, of a backward lookup
        "shape",  # logarithms of a shard's extents, for a learned residual
        "shapes",  # the same, of many shards
    }
)
"""Float fields whose name needs no unit: pure numbers with one meaning in the whole project."""


def run_tool(*command: str) -> None:
    """Run one checker in the repository root and fail with what it printed."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"{' '.join(command[1:])}\n{done.stdout}{done.stderr}", pytrace=False)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a fresh interpreter in the repository root."""
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )


# ------------------------------------------------------------------ tools


def test_ruff_check() -> None:
    run_tool(sys.executable, "-m", "ruff", "check", ".")


def test_ruff_format() -> None:
    run_tool(sys.executable, "-m", "ruff", "format", "--check", ".")


def test_mypy_strict() -> None:
    """Without Python's collector, which mypy turns on between modules and which finds nothing."""
    code = (
        "import gc, sys; gc.disable(); gc.enable = lambda: None\n"
        "from mypy.__main__ import console_entry; console_entry()"
    )
    run_tool(sys.executable, "-c", code, "--strict", *(f"-p{name}" for name in PACKAGES))


def test_import_contracts() -> None:
    code = "from importlinter.cli import lint_imports_command as main; main(['--no-logo'])"
    run_tool(sys.executable, "-c", code)


# ------------------------------------------------------------------ sizes


def source_files() -> list[Path]:
    """Every Python file of the two packages."""
    return sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method in a file, nested ones included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_file_sizes() -> None:
    sizes = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in source_files()}
    too_long = {str(path): size for path, size in sizes.items() if size > MAX_FILE_LINES}
    assert not too_long, f"files above {MAX_FILE_LINES} lines: {too_long}"


def test_function_sizes() -> None:
    too_long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name} ({size} lines)"
        for path in source_files()
        for node in functions(ast.parse(path.read_text()))
        if (size := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]
    assert not too_long, f"functions above {MAX_FUNCTION_LINES} lines: {too_long}"


def test_folders() -> None:
    """A folder with more files has to be divided; those of commands and cases have one for each."""
    found = [path for name in (*PACKAGES, "tests") for path in (ROOT / name).rglob("*.py")]
    counts = Counter(str(path.parent.relative_to(ROOT)) for path in found)
    del counts["planner/cli/commands"], counts["tests/found"]
    too_full = {name: count for name, count in counts.items() if count > MAX_FOLDER_FILES}
    assert not too_full, f"folders with more than {MAX_FOLDER_FILES} files: {too_full}"


def code_lines(path: Path) -> int:
    """Lines with code: blank ones, comments and docstrings are not counted."""
    code: set[int] = set()
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type not in NO_CODE:
                code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                code.difference_update(range(first.lineno, (first.end_lineno or 0) + 1))
    return len(code)


def room_of(path: Path) -> str:
    """The room of a file: a folder of the planner, the modules beside them, or the cost models."""
    package, *inside = path.relative_to(ROOT).parts
    return package if package == "costmodels" or len(inside) == 1 else f"{package}/{inside[0]}"


def test_code_lines() -> None:
    found = Counter[str]()
    for path in source_files():
        found[room_of(path)] += code_lines(path)
    assert set(found) == set(MAX_CODE_LINES), "each room has a limit, and no other has"
    too_long = {room: n for room, n in found.items() if n > MAX_CODE_LINES[room]}
    assert not too_long, f"rooms with more lines of code than they may have: {too_long}"
    assert found.total() <= MAX_TOTAL_CODE_LINES, f"{found.total()} lines of code in all"
    num_files = sum(1 for _ in source_files())
    assert num_files <= MAX_FILES, f"{num_files} files in all"


def test_what_is_code_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "counted.py"
    file.write_text('"""Doc."""\n\n# comment\nx = """a\n\nb"""\n\n\ndef f():\n    """Doc."""\n')
    assert code_lines(file) == 4


def test_folders_of_tests_are_no_packages() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


# ------------------------------------------------------------------ units in names


def is_float(hint: object) -> bool:
    """Whether a type hint is a float or holds floats: in a union, a tuple, a mapping, an array."""
    if isinstance(hint, type):
        return issubclass(hint, float | np.floating)
    return any(is_float(part) for part in typing.get_args(hint))


def frozen_dataclasses(package: types.ModuleType) -> list[type]:
    """Every frozen dataclass that a package defines, in any of its modules."""
    found: list[type] = []
    for module_info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        module = importlib.import_module(module_info.name)
        found += [
            value
            for value in vars(module).values()
            if inspect.isclass(value)
            and value.__module__ == module.__name__
            and dataclasses.is_dataclass(value)
            and value.__dataclass_params__.frozen
        ]
    return found


def has_unit(name: str) -> bool:
    """Whether a field name ends in its unit, or is one that needs none."""
    plain = name.lstrip("_")
    return (
        plain in UNITLESS_NAMES
        or plain.startswith(COUNT_PREFIX)
        or UNIT_SUFFIX.search(f"_{plain}") is not None
    )


def fields_without_unit(cls: type) -> list[str]:
    """The float fields of a dataclass whose name does not say their unit."""
    hints = typing.get_type_hints(cls)
    return [
        f"{cls.__module__}.{cls.__qualname__}.{field.name}"
        for field in dataclasses.fields(cls)
        if is_float(hints[field.name]) and not has_unit(field.name)
    ]


def test_every_float_field_names_its_unit() -> None:
    classes = frozen_dataclasses(costmodels)
    assert classes, "no frozen dataclass found in costmodels"
    bare = [name for cls in classes for name in fields_without_unit(cls)]
    assert not bare, f"float fields without a unit in their name: {bare}"


def test_a_float_field_without_unit_is_caught() -> None:
    @dataclasses.dataclass(frozen=True)
    class Planted:
        latency: float
        latency_ms: float | None
        sizes: tuple[float, ...]
        curve: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
        latency_s: float
        bandwidth_bytes_per_s: float
        price_usd_per_hour: float
        price_per_hour_usd: float
        num_draws: float
        label: str
        count: int

    bare = [name.rsplit(".", 1)[1] for name in fields_without_unit(Planted)]
    assert bare == ["latency", "latency_ms", "sizes", "curve"]


# ------------------------------------------------------------------ light imports

REPORT_HEAVY = f"""
import sys
print(sorted(set(sys.modules) & set({HEAVY_MODULES!r})))
"""


def test_import_planner_is_light() -> None:
    """So are the modules that solve programs: they load no cost model."""
    solver = """
import planner.search.common.lp
print([name for name in sorted(sys.modules) if name.startswith("costmodels")])
"""
    done = run_python(f"import planner\n{REPORT_HEAVY}\n{solver}")
    assert done.returncode == 0, done.stderr
    light = ["costmodels", "costmodels.datatypes"]
    assert done.stdout.splitlines() == ["[]", str(light)]


def test_help_is_light() -> None:
    code = f"""
import sys
from planner.__main__ import main
sys.argv = ["shardplan", "--help"]
try:
    status = main()
except SystemExit as stop:
    status = stop.code
assert not status, status
{REPORT_HEAVY}
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert "Usage: shardplan" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_command_is_installed() -> None:
    (script,) = metadata.entry_points(group="console_scripts", name="shardplan")
    assert script.value == "planner.__main__:main"
