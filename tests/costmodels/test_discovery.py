"""Plug-ins are found by file name; errors say what there is."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

import costmodels.collective
import costmodels.dense
import costmodels.distribution
import costmodels.lookup
from costmodels import discovery
from costmodels.collective.base import AbstractCollectiveModel
from costmodels.errors import (
    CostModelError,
    InvalidValueError,
    UnitError,
    UnknownNameError,
    require,
)
from costmodels.iteration.base import PIPELINES
from costmodels.lookup.base import AbstractLookupModel
from costmodels.workload import Pipeline


@pytest.mark.parametrize(
    ("package", "expected"),
    [
        (costmodels.lookup, {"roofline"}),
        (costmodels.collective, {"alpha_beta"}),
        (costmodels.dense, {"roofline"}),
        (costmodels.distribution, {"uniform", "zipf"}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, ModuleType) else "",
)
def test_names_lists_plug_ins_and_nothing_private(package: ModuleType, expected: set[str]) -> None:
    found = discovery.names(package)
    assert expected <= set(found)
    assert list(found) == sorted(found)
    assert not any(name == "base" or name.startswith("_") for name in found)


def test_load_returns_the_class_of_the_file() -> None:
    kind = discovery.load(costmodels.lookup, "roofline", AbstractLookupModel)
    model = kind()
    assert isinstance(model, AbstractLookupModel)
    assert type(model).__module__ == "costmodels.lookup.roofline"


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError) as caught:
        discovery.load(costmodels.distribution, "cauchy", AbstractLookupModel)
    assert str(caught.value).startswith("'cauchy' is not one of costmodels.distribution: ")
    assert "uniform, zipf" in str(caught.value)


def test_private_files_and_the_interface_cannot_be_asked_for() -> None:
    for name in ("base", "_law"):
        with pytest.raises(UnknownNameError):
            discovery.load(costmodels.collective, name, AbstractCollectiveModel)


def test_a_file_without_a_model_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "planted_models"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "empty.py").write_text(
        "from costmodels.lookup.base import AbstractLookupModel\n"
        "from costmodels.lookup.roofline import Roofline\n"
        "class Half(AbstractLookupModel):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    package = __import__("planted_models")
    try:
        assert discovery.names(package) == ("empty",)
        with pytest.raises(UnknownNameError, match="empty defines no AbstractLookupModel"):
            discovery.load(package, "empty", AbstractLookupModel)
    finally:
        for name in [n for n in sys.modules if n.startswith("planted_models")]:
            del sys.modules[name]


@pytest.mark.parametrize("kind", list(Pipeline))
def test_every_named_pipeline_has_an_order_of_steps(kind: Pipeline) -> None:
    assert PIPELINES[kind].order


# ------------------------------------------------------------------ errors


def test_all_errors_have_one_root_and_a_builtin_kind() -> None:
    for kind, builtin in (
        (UnitError, ValueError),
        (InvalidValueError, ValueError),
        (UnknownNameError, KeyError),
    ):
        assert issubclass(kind, CostModelError)
        assert issubclass(kind, builtin)


def test_an_unknown_name_prints_without_quotes() -> None:
    assert str(UnknownNameError("no such model")) == "no such model"
    assert str(UnknownNameError()) == ""


def test_require_raises_only_when_the_rule_is_broken() -> None:
    require(True, "never seen")
    with pytest.raises(InvalidValueError, match="the rule"):
        require(False, "the rule")
