"""Small faults planted in the code, one at a time: do the tests notice?

    python benchmarks/mutation.py
    python benchmarks/mutation.py --modules stages,memory --sample 30 --seed 1

A fault is another comparison or arithmetic operator, another constant, a condition turned round,
``min`` for ``max``, or None for what a function returns. For each module a sample of its faults is
drawn; each is written into a copy of the repository in a temporary folder, where the tests of that
module run until one fails. The fault is killed if one does, if the code no longer loads, or if the
tests take ten times the processor time that they take without it; else it has survived, and is
listed. The repository itself is never changed.
"""

from __future__ import annotations

import argparse
import ast
import bisect
import contextlib
import importlib
import importlib.util
import os
import random
import re
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]

MODULES: Final[dict[str, tuple[str, str]]] = {
    "work": (
        "costmodels/shard_work/work.py",
        "tests/costmodels/shard_work "
        "tests/costmodels/stages/test_codecs.py "
        "tests/costmodels/test_memory.py tests/costmodels/test_pipeline.py",
    ),
    "stages": (
        "costmodels/stages",
        "tests/costmodels/stages tests/costmodels/test_pipeline.py "
        "tests/costmodels/test_batch_shares.py",
    ),
    "memory": (
        "costmodels/memory.py",
        "tests/costmodels/test_memory.py tests/costmodels/stages/test_reduction.py "
        "tests/costmodels/test_pipeline.py",
    ),
    "collective": (
        "costmodels/collective",
        "tests/costmodels/collective tests/conformance/test_collectives.py "
        "tests/planner/predict/test_collective_properties.py",
    ),
    "iteration": (
        "costmodels/iteration",
        "tests/costmodels/iteration tests/costmodels/test_pipeline.py",
    ),
    "bounds": (
        "planner/search/bounds",
        "tests/planner/search/bounds tests/planner/search/test_move_bound.py "
        "tests/planner/search/test_bound.py tests/planner/search/test_makespan.py "
        "tests/planner/search/test_boxes.py tests/planner/test_api.py",
    ),
    "explain": (
        "planner/explain",
        "tests/planner/test_explain_placing.py tests/planner/test_explain_costs.py "
        "tests/planner/test_explain_every_way.py "
        "tests/planner/test_explain.py tests/planner/test_explain_rules.py "
        "tests/differential/questions/test_explaining.py "
        "tests/planner/cli/commands/test_explain_command.py",
    ),
}
"""Files of each module, and the tests that are meant to hold it, the quickest first."""

_LEFT_OUT: Final = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info")
_LIBRARIES: Final = (
    *("numpy", "scipy.optimize", "scipy.sparse", "click", "rich.console", "yaml"),
    *("pydantic", "ortools.math_opt.python.mathopt", "ortools.sat.python.cp_model"),
)
"""Imported once, before the processes that run tests are forked."""
_LEAST_CPU_S: Final = 60
_CPU_FACTOR: Final = 10

_OPERATORS: Final[dict[type[ast.AST], tuple[str, str]]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "*"), ast.Pow: ("**", "*"),
    ast.And: ("and", "or"), ast.Or: ("or", "and"),
}  # fmt: skip
_NAMES: Final = {
    "min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "any": "all",
    "all": "any", "argmin": "argmax", "argmax": "argmin",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A file with one fault: ``old`` at a place of it stands no longer, ``new`` does."""

    path: str
    line: int
    start: int
    end: int
    old: str
    new: str

    def applied(self, source: bytes) -> bytes:
        """The source with the fault; ``start`` and ``end`` count its bytes."""
        return source[: self.start] + self.new.encode() + source[self.end :]

    def __str__(self) -> str:
        """One line: where, and what became of what."""
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.path}:{self.line}  {old}  ->  {new}"


class _Finder:
    """Every fault of one file."""

    def __init__(self, path: str, source: bytes) -> None:
        self._path, self._source = path, source
        lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in lines:
            self._starts.append(self._starts[-1] + len(line))
        self.found: list[Mutant] = []

    def visit(self, node: ast.AST) -> None:
        """The faults of a node and of all in it but annotations, decorators and messages."""
        if isinstance(node, ast.Raise | ast.JoinedStr):
            return
        if isinstance(node, ast.keyword) and node.arg == "strict":
            return  # of zip: lengths that are equal anyway
        self._at(node)
        skipped = {"annotation", "returns", "decorator_list", "type_params"}
        for name, value in ast.iter_fields(node):
            if name in skipped:
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    self.visit(child)

    def _at(self, node: ast.AST) -> None:
        self._operators(node)
        self._conditions(node)
        match node:
            case ast.UnaryOp(op=ast.USub() | ast.Not()):
                self._replace(node, self._text(node.operand))
            case ast.Constant(value=bool() | int() | float()):
                self._replace(node, _other_constant(node.value))
            case ast.Return(value=ast.expr() as value):
                self._replace(value, "None")
            case ast.Name(id=name) if name in _NAMES:
                self._replace(node, _NAMES[name])
            case ast.Attribute(attr=name) if name in _NAMES:
                self._replace(node, f"{self._text(node.value)}.{_NAMES[name]}")

    def _operators(self, node: ast.AST) -> None:
        match node:
            case ast.Compare():
                sides = [node.left, *node.comparators]
                for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
                    self._operator(left, operator, right)
            case ast.BinOp():
                self._operator(node.left, node.op, node.right)
            case ast.BoolOp():
                for left, right in zip(node.values, node.values[1:], strict=False):
                    self._operator(left, node.op, right)

    def _conditions(self, node: ast.AST) -> None:
        match node:
            case ast.If() | ast.IfExp() | ast.While():
                tests = [node.test]
            case ast.comprehension():
                tests = node.ifs
            case _:
                tests = []
        for test in tests:
            self._replace(test, f"(not ({self._text(test)}))")

    def _span(self, node: ast.expr) -> tuple[int, int]:
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def _text(self, node: ast.expr) -> str:
        start, end = self._span(node)
        return self._source[start:end].decode()

    def _replace(self, node: ast.expr, new: str) -> None:
        self._add(*self._span(node), new)

    def _operator(self, left: ast.expr, operator: ast.AST, right: ast.expr) -> None:
        old, new = _OPERATORS.get(type(operator), ("", ""))
        after, before = self._span(left)[1], self._span(right)[0]
        between = self._source[after:before].decode()
        word = rf"\b{old.replace(' ', chr(92) + 's+')}\b" if old.isalpha() else re.escape(old)
        if old and (at := re.search(word, between)):
            self._add(after + at.start(), after + at.end(), new)

    def _add(self, start: int, end: int, new: str) -> None:
        old = self._source[start:end].decode()
        if old == new:  # a function that returns None anyway
            return
        line = bisect.bisect_right(self._starts, start)
        mutant = Mutant(path=self._path, line=line, start=start, end=end, old=old, new=new)
        self.found.append(mutant)


def _other_constant(value: float) -> str:
    if isinstance(value, bool):
        return str(not value)
    return str(value + 1) if isinstance(value, int) or value in (0.0, 1.0) else repr(2 * value)


def mutants(path: str, source: bytes) -> list[Mutant]:
    """Every fault that can be planted in a file, in the order of the file."""
    finder = _Finder(path, source)
    finder.visit(ast.parse(source))
    return sorted(set(finder.found), key=lambda m: (m.start, m.end, m.new))


def drawn(module: str, sample: int, seed: int) -> list[Mutant]:
    """A sample of a module's faults, in the order of its files."""
    place = ROOT / MODULES[module][0]
    files = sorted(place.glob("*.py")) if place.is_dir() else [place]
    every = [m for f in files for m in mutants(str(f.relative_to(ROOT)), f.read_bytes())]
    chosen = random.Random(f"{module} {seed}").sample(range(len(every)), min(sample, len(every)))
    return [every[i] for i in sorted(chosen)]


@contextlib.contextmanager
def planted(mutant: Mutant, copy: Path) -> Iterator[None]:
    """The copy has the fault, until the end of the block.

    Bytecode that is kept beside the file is deleted both times. Python takes it for that of the
    file if the size is the same and the file was written within the same second, so that one fault
    would stand in for another one.
    """
    path = copy / mutant.path
    kept = Path(importlib.util.cache_from_source(path))
    source = path.read_bytes()
    path.write_bytes(mutant.applied(source))
    kept.unlink(missing_ok=True)
    try:
        yield
    finally:
        path.write_bytes(source)
        kept.unlink(missing_ok=True)


def tests_pass(copy: Path, tests: str, most_cpu_s: int) -> tuple[bool, float]:
    """Whether the tests pass in a process of its own, and its processor time in seconds."""
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (most_cpu_s, most_cpu_s + 5))
        os.chdir(copy)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        code = 70
        with contextlib.suppress(BaseException):
            code = pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests.split()])
        os._exit(code)
    _, status, used = os.wait4(pid, 0)
    return status == 0, used.ru_utime + used.ru_stime


def judged(module: str, chosen: Sequence[Mutant], copy: Path) -> list[Mutant]:
    """The faults that survive the tests of their module."""
    tests = MODULES[module][1]
    passed, seconds = tests_pass(copy, tests, 3600)
    if not passed:
        sys.exit(f"the tests of {module} fail without a fault: python -m pytest {tests}")
    most_s = max(_LEAST_CPU_S, int(_CPU_FACTOR * seconds))
    survived: list[Mutant] = []
    for i, mutant in enumerate(chosen):
        told = f"\r{module}: {i} of {len(chosen)} faults, {len(survived)} survived "
        print(told, end="", file=sys.stderr, flush=True)
        with planted(mutant, copy):
            passed, _ = tests_pass(copy, tests, most_s)
        if passed:
            survived.append(mutant)
    print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
    return survived


def main(arguments: Sequence[str] | None = None) -> None:
    """Plant faults and print how many were noticed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modules", default=",".join(MODULES), help="names, with commas between")
    parser.add_argument("--sample", type=int, default=30, help="faults of each module")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    flags = parser.parse_args(arguments)
    names = flags.modules.split(",")
    if unknown := sorted(set(names) - set(MODULES)):
        parser.error(f"unknown modules: {', '.join(unknown)}; known: {', '.join(MODULES)}")
    for library in _LIBRARIES:
        importlib.import_module(library)
    planted_, survivors = 0, 0
    print(f"{'module':12s} {'faults':>7s} {'killed':>7s} {'survived':>9s} {'killed':>7s}")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(ROOT, copy, ignore=_LEFT_OUT)
        for name in names:
            chosen = drawn(name, flags.sample, flags.seed)
            survived = judged(name, chosen, copy)
            planted_, survivors = planted_ + len(chosen), survivors + len(survived)
            _print_line(name, len(chosen), len(survived))
            for mutant in survived:
                print(f"    {mutant}", flush=True)
    _print_line("all", planted_, survivors)


def _print_line(name: str, faults: int, survived: int) -> None:
    share = (faults - survived) / max(faults, 1)
    print(f"{name:12s} {faults:7d} {faults - survived:7d} {survived:9d} {share:7.0%}", flush=True)


if __name__ == "__main__":
    main()
