"""The twenty instances on which TorchRec's planners and ours are compared."""

from __future__ import annotations

import pytest

from benchmarks.search.torchrec_instances import FILLED_RATIO, NAMES, criteo, instance
from costmodels.workload import DataType


def test_twenty_names_of_which_ten_were_there_before() -> None:
    assert len(NAMES) == len(set(NAMES)) == 20
    assert {"criteo26@8", "synthetic856@64", "skewed300@16", "mixed60@32"} <= set(NAMES)


@pytest.mark.parametrize("name", ["skewed60@16/tight", "mixed60@16/codecs+cached"])
def test_variants_fill_devices_and_name_caches_and_codecs(name: str) -> None:
    case = instance(name)
    tables, variants = case.workload.tables, name.partition("/")[2].split("+")
    (ratio,) = (FILLED_RATIO[v] for v in variants if v in FILLED_RATIO)
    room = sum(case.topology.hbm_capacities())
    taken = sum(t.weight_bytes for t in tables)
    assert ratio / 2 < taken / room < ratio, "inputs, outputs and reserve take some of it"
    assert (case.cache_load_factor_ratio is not None) == ("cached" in variants)
    assert all((t.communication is not None) == ("codecs" in variants) for t in tables)


def test_families_are_what_they_say() -> None:
    skewed = sorted(t.pooling_factor for t in instance("skewed100@8").workload.tables)
    plain = sorted(t.pooling_factor for t in instance("synthetic100@8").workload.tables)
    assert sum(skewed[-10:]) / sum(skewed) > sum(plain[-10:]) / sum(plain)
    mixed = instance("mixed100@8").workload.tables
    assert {t.dtype for t in mixed} == {DataType.FP32, DataType.FP16}
    assert {len(t.features) for t in mixed} == {1, 2, 3, 4}
    assert instance("criteo26@16/codecs").workload.tables != criteo().tables
