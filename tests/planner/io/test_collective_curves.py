"""The shipped curves and files of one's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from costmodels.collective.alpha_beta import AlphaBeta
from costmodels.collective.base import Basis
from costmodels.collective.measured import Measured
from costmodels.collective.ramp import Ramp
from costmodels.measured.curves import Collective
from costmodels.system_models import collective_model, default_models
from planner import io
from planner.errors import InvalidInputError
from planner.io.system.collective_curves import (
    PREDICTING_ROLES,
    curves_text,
    load_curves,
    read_curves,
    shipped_curves,
)
from planner.models import collective_model_of_device


def test_every_shipped_curve_has_a_source_and_a_licence_note() -> None:
    records = shipped_curves()
    assert len(records) > 150
    assert all(r.curve.source and r.licence and r.harness for r in records)


def test_validation_rows_never_reach_a_prediction() -> None:
    own = [r for r in shipped_curves() if r.set_name == "a100_80gb_sxm"]
    checks = [r for r in own if r.role == "validate"]
    assert checks
    loaded = load_curves(io.load_system("a100_80gb_sxm"))
    sources = {c.source for c in loaded}
    assert not sources & {r.curve.source for r in checks}
    for name in io.names("systems"):
        topology = io.load_system(name)
        own = {r.curve.source for r in shipped_curves() if r.role in PREDICTING_ROLES}
        assert all(c.source in own for c in load_curves(topology))


@pytest.mark.parametrize("name", io.names("systems"))
def test_every_shipped_system_has_models(name: str) -> None:
    topology = io.load_system(name, gpus=2)
    model = default_models(topology).collective
    without = Ramp if topology.network_link.fabric else AlphaBeta
    assert isinstance(model, Measured if topology.collective_curves else without)


def test_curves_of_a_like_system_are_marked() -> None:
    own, like = io.load_system("b200_sxm", gpus=4), io.load_system("gb200", gpus=4)
    size = 2.0**24
    trust = [collective_model(t).confidence(Collective.ALL_GATHER, size, t) for t in (own, like)]
    assert [t.basis for t in trust] == [Basis.MEASURED, Basis.CALIBRATED]
    assert trust[0].spread_ratio < trust[1].spread_ratio


def test_one_operation_may_use_a_set_that_plans_do_not() -> None:
    topology = io.load_system("l40s", gpus=8)
    assert isinstance(collective_model(topology), AlphaBeta)
    assert isinstance(collective_model_of_device(topology), Measured)
    plain = io.load_system("l40", gpus=8)
    assert isinstance(collective_model_of_device(plain), AlphaBeta)


def test_a_set_that_is_not_there_is_named_with_those_that_are() -> None:
    topology = replace(io.load_system("h100_sxm"), collective_curves=("h900",))
    with pytest.raises(InvalidInputError, match=r"no set 'h900'.*h100_sxm"):
        load_curves(topology)


def test_a_system_file_is_named_where_its_set_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "box.yaml"
    path.write_text("base: l40\ncollective_curves: [h100_sxm, h900]\n", encoding="utf-8")
    with pytest.raises(InvalidInputError, match=r"box\.yaml:2: collective_curves: no set 'h900'"):
        io.load_system(path)


def test_a_file_of_ones_own_lies_beside_the_system_file(tmp_path: Path) -> None:
    records = [r for r in shipped_curves() if r.set_name == "h100_sxm"][:2]
    (tmp_path / "mine.csv").write_text(curves_text(records), encoding="utf-8")
    text = Path(io.documents.locate("l40", "systems")).read_text(encoding="utf-8")
    (tmp_path / "box.yaml").write_text(text + "collective_curves: [mine.csv]\n", encoding="utf-8")
    topology = io.load_system(tmp_path / "box.yaml")
    found = load_curves(topology)
    assert [c.shape for c in found] == [r.curve.shape for r in records]
    assert all(c.priority == 0 for c in found)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    records = shipped_curves()
    path = tmp_path / "copy.csv"
    path.write_text(curves_text(records), encoding="utf-8")
    again = read_curves(path)
    assert curves_text(again) == curves_text(records)
    assert [r.role for r in again] == [r.role for r in records]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("calibrate", "train", "role: value 'train': must be one of"),
        ("all_reduce", "broadcast", "collective: value 'broadcast': must be one of"),
        (",2,2,2,", ",2,two,2,", "ranks: value 'two': must be a whole number"),
        ("8:1.5", "8:fast", "'8:fast' is not size:time"),
        ("8:1.5", "8", "'8' is not size:time"),
        ("8:1.5", "32:1.5", "rise"),
        ("8:1.5", "8:-1", "above 0"),
    ],
)
def test_bad_rows_are_listed_with_their_lines(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    header = curves_text([]).strip()
    row = "s,all_reduce,1,2,2,2,GPU,,,NCCL,,tests,calibrate,here,MIT,,8:1.5 16:2"
    path = tmp_path / "curves.csv"
    path.write_text("\n".join([header, row.replace(old, new), row, ""]), encoding="utf-8")
    with pytest.raises(InvalidInputError) as caught:
        read_curves(path)
    assert len(caught.value.problems) == 1
    assert f"{path}:2: " in str(caught.value)
    assert message in str(caught.value)


def test_a_file_without_columns_or_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "curves.csv"
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(InvalidInputError, match="columns missing: set"):
        read_curves(path)
    path.write_text(curves_text([]), encoding="utf-8")
    with pytest.raises(InvalidInputError, match="no rows"):
        read_curves(path)
