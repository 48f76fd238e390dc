"""What the importers of HugeCTR read, and what they assume."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costmodels.sharding import Plan, ShardingType
from costmodels.workload import (
    DataType,
    DenseOptimizer,
    Interaction,
    Optimizer,
    Pipeline,
    Pooling,
)
from planner.errors import InvalidInputError
from planner.io.importers.base import imported_plan_text
from planner.io.importers.hugectr import hugectr_plan_text, import_hugectr, import_hugectr_plan
from tests.planner.io.importers import samples
from tests.planner.io.importers.checks import check_readable, save, three_tables


def test_hugectr_localized(tmp_path: Path) -> None:
    imported = import_hugectr(save(tmp_path, samples.hugectr_config()))
    workload = imported.workload
    assert [t.num_embeddings for t in workload.tables] == [1000, 20, 300]
    assert [t.pooling_factor for t in workload.tables] == [1, 2, 5]
    assert {t.pooling for t in workload.tables} == {Pooling.MEAN}
    assert workload.batch_size_per_rank == 256
    assert (workload.optimizer, workload.index_bytes) == (Optimizer.ADAM, 8)
    dense = workload.dense
    assert (dense.bottom_mlp, dense.top_mlp) == ((32, 16), (8, 1))
    assert (dense.interaction, dense.dtype) == (Interaction.DOT, DataType.FP16)
    assert any("BatchNorm" in line for line in imported.unsaid)
    assert imported.plan is not None
    assert [p.ranks for p in imported.plan.placements] == [(0,), (1,), (2,)]
    assert (imported.world_size, imported.local_world_size) == (4, 2)
    check_readable(imported, tmp_path)


def test_hugectr_distributed_without_slot_sizes(tmp_path: Path) -> None:
    """Slots of one hash table are features of one table, cut by rows."""
    config = samples.hugectr_config("DistributedSlotSparseEmbeddingHash")
    hparam = config["layers"][1]["sparse_embedding_hparam"]
    del hparam["slot_size_array"]
    hparam["workspace_size_per_gpu_in_mb"] = 1
    imported = import_hugectr(save(tmp_path, config))
    (table,) = imported.workload.tables
    with_adam = 4 * 16 * (1 + 2)  # two states beside each weight
    assert table.num_embeddings == 4 * (2**20 // with_adam)
    assert "has room for" in imported.assumed["tables"]
    assert [f.pooling_factor for f in table.features] == [1, 2, 5]
    assert imported.plan is not None
    (placement,) = imported.plan.placements
    assert placement.sharding_type is ShardingType.ROW_WISE
    assert placement.ranks == (0, 1, 2, 3)
    check_readable(imported, tmp_path)


@pytest.mark.parametrize(
    ("optimizer", "states"),
    [
        ({"type": "SGD"}, 0),
        ({"type": "AdaGrad"}, 1),
        ({"type": "Adam", "update_type": "Global"}, 2),
        ({"type": "Adam", "update_type": "LazyGlobal"}, 3),
    ],
)
def test_hugectr_workspaces_hold_the_states_of_the_optimizer(
    optimizer: dict[str, str], states: int, tmp_path: Path
) -> None:
    """As HugeCTR's initialize_max_vocabulary_size_per_gpu divides them."""
    config = samples.hugectr_config("DistributedSlotSparseEmbeddingHash")
    config["layers"][1]["optimizer"] = optimizer
    hparam = config["layers"][1]["sparse_embedding_hparam"]
    del hparam["slot_size_array"]
    hparam["workspace_size_per_gpu_in_mb"] = 7
    (table,) = import_hugectr(save(tmp_path, config)).workload.tables
    assert table.num_embeddings == 4 * (7 * 2**20 // (4 * 16 * (1 + states)))
    hparam["max_vocabulary_size_global"] = 12_345
    (table,) = import_hugectr(save(tmp_path, config)).workload.tables
    assert table.num_embeddings == 12_345


def test_hugectr_solver_says_how_steps_run(tmp_path: Path) -> None:
    """It captures a graph unless told otherwise; overlap and tf32 were passed over."""
    config = samples.hugectr_config()
    config["layers"][1]["optimizer"] = {"type": "SGD"}  # of the embeddings alone
    imported = import_hugectr(save(tmp_path, config))
    workload = imported.workload
    assert (workload.cuda_graph, workload.pipeline) == (True, Pipeline.NONE)
    assert workload.dense_optimizer is DenseOptimizer.ADAM
    assert "training.cuda_graph" in imported.assumed
    del config["solver"]["mixed_precision"]
    config["solver"] |= {"cuda_graph": False, "enable_overlap": True, "enable_tf32_compute": True}
    imported = import_hugectr(save(tmp_path, config))
    workload = imported.workload
    assert (workload.cuda_graph, workload.pipeline) == (False, Pipeline.HUGECTR)
    assert (workload.dense.dtype, workload.output_dtype) == (DataType.TF32, DataType.FP32)
    assert not {"training.cuda_graph", "training.pipeline"} & set(imported.assumed)
    check_readable(imported, tmp_path)
    config["solver"]["holistic_cuda_graph"] = True
    assert import_hugectr(save(tmp_path, config)).workload.cuda_graph
    config["solver"]["cuda_graph"] = "no"
    with pytest.raises(InvalidInputError, match=r"solver.cuda_graph.*true or false"):
        import_hugectr(save(tmp_path, config))


def test_hugectr_optimizer_of_an_embedding(tmp_path: Path) -> None:
    """It goes before that of all layers; where embeddings differ, the file says which was taken."""
    config = samples.hugectr_config()
    first = config["layers"][1]
    first["optimizer"] = {"type": "SGD"}
    assert import_hugectr(save(tmp_path, config)).workload.optimizer is Optimizer.SGD
    config["layers"].insert(2, {**first, "name": "second", "optimizer": {"type": "AdaGrad"}})
    imported = import_hugectr(save(tmp_path, config))
    assert imported.workload.optimizer is Optimizer.ADAGRAD
    said = imported.assumed["training.optimizer"]
    assert said.startswith("that of second, AdaGrad, for all tables; ")
    assert said.endswith("has SGD")
    check_readable(imported, tmp_path)


def test_hugectr_cross_network_and_hybrid(tmp_path: Path) -> None:
    """A cross network is seen; where a hybrid embedding lies is not."""
    config = samples.hugectr_config("HybridSparseEmbedding")
    config["layers"][5] = {
        "type": "MultiCross",
        "bottom": "emb_out",
        "top": "dot",
        "mc_param": {"num_layers": 3, "projection_dim": 64},
    }
    imported = import_hugectr(save(tmp_path, config))
    dense = imported.workload.dense
    assert (dense.interaction, dense.dcn_num_layers, dense.dcn_low_rank_dim) == (
        Interaction.DCN,
        3,
        64,
    )
    assert imported.plan is None
    with pytest.raises(InvalidInputError, match="leave --plan out"):
        imported_plan_text(imported)


def test_hugectr_cross_network_without_a_top_mlp(tmp_path: Path) -> None:
    """Nothing follows it here, so it is told that it counts as taking no time."""
    config = samples.hugectr_config()
    cross = {"type": "MultiCross", "mc_param": {"num_layers": 3, "projection_dim": 64}}
    kept = [x for x in config["layers"][:5] if x["type"] != "Interaction"]
    config["layers"] = [*kept, {**cross, "bottom": "emb_out", "top": "cross"}]
    imported = import_hugectr(save(tmp_path, config))
    dense = imported.workload.dense
    assert (dense.top_mlp, dense.interaction, dense.dcn_num_layers) == ((), Interaction.DOT, 0)
    assert any("MultiCross" in line and "no time" in line for line in imported.unsaid)


@pytest.mark.parametrize(
    ("keys", "value", "words"),
    [
        (("solver", "batchsize"), "big", "solver.batchsize: value 'big'"),
        (("solver", "gpu"), [[0, 1], [0]], "solver.gpu"),
        (("solver", "gpu"), [], "solver.gpu"),
        (("optimizer", "type"), "Lion", "optimizer.type"),
        (("layers", 0, "sparse"), [], "layers[1].bottom"),
        (("layers", 0, "sparse", 0, "max_nnz"), [1, 2], "must have 3 entries"),
        (("layers", 1, "sparse_embedding_hparam", "embedding_vec_size"), 0, "must be at least 1"),
        (("layers", 1, "sparse_embedding_hparam", "combiner"), 7, "combiner"),
        (("layers", 2, "fc_param"), {}, "layers[2].fc_param: key 'num_output' is missing"),
        (("layers", 0, "dense"), {}, "layers[0].dense: key 'dense_dim' is missing"),
    ],
)
def test_hugectr_values_that_are_wrong(
    keys: tuple[str | int, ...], value: object, words: str, tmp_path: Path
) -> None:
    config: Any = samples.hugectr_config()
    part = config
    for key in keys[:-1]:
        part = part[key]
    part[keys[-1]] = value
    with pytest.raises(InvalidInputError) as caught:
        import_hugectr(save(tmp_path, config))
    assert words in str(caught.value)


def kinds(plan: Plan) -> list[ShardingType]:
    """Sharding type of each table."""
    return [p.sharding_type for p in plan.placements]


def test_hugectr_plans(tmp_path: Path) -> None:
    workload = three_tables()
    imported = import_hugectr_plan(save(tmp_path, samples.hugectr_plan()), workload)
    assert imported.plan is not None
    whole, cut = ShardingType.TABLE_WISE, ShardingType.ROW_WISE
    assert kinds(imported.plan) == [whole, cut, ShardingType.DATA_PARALLEL]
    assert [p.ranks for p in imported.plan.placements] == [(1,), (1, 0), (0, 1)]
    check_readable(imported, tmp_path)


def test_hugectr_plans_go_out_as_they_came(tmp_path: Path) -> None:
    workload = three_tables()
    plan = import_hugectr_plan(save(tmp_path, samples.hugectr_plan()), workload).plan
    assert plan is not None
    text = hugectr_plan_text(plan, workload, 2)
    assert import_hugectr_plan(save(tmp_path, json.loads(text)), workload).plan == plan
    first = plan.placements[0]
    halves = [
        replace(first.shards[0], rank=rank, col_offset=offset, num_cols=columns)
        for rank, (offset, columns) in enumerate([(0, 4), (4, first.shards[0].num_cols - 4)])
    ]
    cut = replace(first, sharding_type=ShardingType.COLUMN_WISE, shards=tuple(halves))
    columns_cut = Plan(placements=(cut, *plan.placements[1:]))
    with pytest.raises(InvalidInputError, match="cannot say column pieces"):
        hugectr_plan_text(columns_cut, workload, 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: p[0][2].update(local_embedding_list=[]), "own list"),
        (lambda p: p[0][1].update(sharding_id=0), "parts [0, 0] are there"),
        (lambda p: p[0][1].update(num_sharding=3), "num_sharding: value 3"),
        (lambda p: p[0].pop(2), "dp needs a copy on each of 2"),
        (lambda p: p[0][2].update(sharding_id=1), "each with sharding_id 0"),
        (lambda p: p[1].pop(0), "table 't0': is on no GPU"),
        (lambda p: p[0][1].update(local_embedding_list=[9]), "must be 0 to 2"),
        (lambda p: p[0][0].update(table_placement_strategy="hot"), "localized, dp"),
        (lambda p: p.clear(), "gpus: value []: must have at least 1 entries"),
    ],
)
def test_hugectr_plans_that_are_wrong(
    change: Callable[[Any], object], words: str, tmp_path: Path
) -> None:
    value = copy.deepcopy(samples.hugectr_plan())
    change(value)
    with pytest.raises(InvalidInputError) as caught:
        import_hugectr_plan(save(tmp_path, value), three_tables())
    assert words in str(caught.value)
