"""The docstring of every public name has an example, and the example does what it says."""

from __future__ import annotations

import doctest
import inspect

import pytest

import planner

_NAMES = {name: getattr(planner, name) for name in planner.__all__}


@pytest.mark.parametrize("name", planner.__all__)
def test_the_example_of_a_public_name_runs(name: str) -> None:
    public = _NAMES[name]
    text = inspect.getdoc(public) or ""
    found = doctest.DocTestParser().get_doctest(text, dict(_NAMES), name, None, 0)
    assert found.examples, f"{name} has no example"
    assert "Example:" in text
    runner = doctest.DocTestRunner(verbose=False)
    told: list[str] = []
    result = runner.run(found, out=told.append)
    assert result.failed == 0, "".join(told)


@pytest.mark.parametrize(
    "name", [name for name, public in _NAMES.items() if inspect.isfunction(public)]
)
def test_the_docstring_of_a_function_names_arguments_and_errors(name: str) -> None:
    text = inspect.getdoc(_NAMES[name]) or ""
    told = text.partition("Args:")[2]
    for argument in inspect.signature(_NAMES[name]).parameters:
        assert f"{argument}: " in told, argument
    assert "Raises:" in text
