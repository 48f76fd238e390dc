"""What each importer reads, and what it assumes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodels.distribution.uniform import Uniform
from costmodels.sharding import check_plan
from costmodels.workload import DataType, DenseOptimizer, Interaction, Optimizer, Pooling
from planner import io
from planner.errors import InvalidInputError
from planner.io.importers.base import import_torchrec_plan
from planner.io.importers.dlrm import KAGGLE_ROWS, import_dlrm, parse_dlrm_command
from planner.io.importers.fbgemm import import_fbgemm, import_param
from tests.planner.io.importers import samples
from tests.planner.io.importers.checks import SHAPES, check_readable, save

# ------------------------------------------------------------------ what is read


def test_torchrec_plan(tmp_path: Path) -> None:
    imported = import_torchrec_plan(save(tmp_path, samples.torchrec_plan()), SHAPES)
    shapes = {t.name: (t.num_embeddings, t.embedding_dim) for t in imported.workload.tables}
    assert shapes == {
        "user": (5000, 64),
        "sparse.ebc.shop": (100, 16),
        "hour": (24, 4),
        "other.shop": (70, 8),
    }
    assert imported.workload.table("user").module == "sparse.ebc"
    assert {"tables", "training.batch_size_per_rank", "dense"} <= set(imported.assumed)
    check_readable(imported, tmp_path)


def test_the_plan_itself_fits_the_imported_workload(tmp_path: Path) -> None:
    """So that it can be priced: names and modules are those that the plan's reader looks for."""
    path = save(tmp_path, samples.torchrec_plan())
    imported = import_torchrec_plan(path, SHAPES)
    check_plan(io.load_plan(path, imported.workload).plan, imported.workload, 4)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({}, "--shape hour=ROWSxCOLUMNS"),
        ({"hour": (24, 4), "ghost": (1, 1)}, "--shape ghost"),
        ({"hour": (24, 4), "user": (5, 5)}, "its shards cover"),
        ({"hour": (0, 4)}, "table 'hour': .*num_embeddings must be 1.*, got 0"),
    ],
)
def test_torchrec_shapes_that_are_wrong(
    shapes: dict[str, tuple[int, int]], words: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError, match=words):
        import_torchrec_plan(save(tmp_path, samples.torchrec_plan()), shapes)


def test_torchrec_shards_with_a_hole(tmp_path: Path) -> None:
    value = samples.torchrec_plan()
    value["plan"]["sparse.ebc"]["user"]["shards"][1]["shard_offsets"] = [0, 40]
    with pytest.raises(InvalidInputError, match="must tile it"):
        import_torchrec_plan(save(tmp_path, value), SHAPES)


def test_dlrm_global_batch_is_divided() -> None:
    workload = import_dlrm([samples.SMALL_DLRM]).workload
    assert [t.num_embeddings for t in workload.tables] == [1000, 200, 3]
    assert workload.batch_size_per_rank == 2048 // 4
    assert workload.optimizer is Optimizer.ROWWISE_ADAGRAD
    dense = workload.dense
    assert (dense.num_dense_features, dense.bottom_mlp, dense.top_mlp) == (13, (64, 16), (64, 1))
    assert import_dlrm([samples.SMALL_DLRM], world_size=2).workload.batch_size_per_rank == 1024


def test_dlrm_indices_of_its_random_generator() -> None:
    """The mean of max(1, round(r min(rows, n))), against a sum over its outcomes."""
    factors = [t.pooling_factor for t in import_dlrm([samples.SMALL_DLRM]).workload.tables]
    for rows, factor in zip((1000, 200, 3), factors, strict=True):
        n = min(rows, 10)
        draws = np.maximum(np.rint((np.arange(200_000) + 0.5) / 200_000 * n), 1)
        assert factor == pytest.approx(draws.mean(), rel=1e-3)
    fixed = import_dlrm([samples.SMALL_DLRM + " --num-indices-per-lookup-fixed=True"])
    assert {t.pooling_factor for t in fixed.workload.tables} == {10.0}


def test_dlrm_flags_mean_what_the_program_makes_of_them() -> None:
    """Its argparse takes the word False for true, and cuts rows of data sets only."""
    fixed = import_dlrm([samples.SMALL_DLRM + " --num-indices-per-lookup-fixed=False"])
    assert {t.pooling_factor for t in fixed.workload.tables} == {10.0}
    assert "takes --num-indices-per-lookup-fixed=False for true" in fixed.assumed["tables"]
    uncut = import_dlrm([samples.SMALL_DLRM + " --max-ind-range=50"]).workload
    assert [t.num_embeddings for t in uncut.tables] == [1000, 200, 3]


def test_dlrm_trains_its_dense_part_with_the_optimizer_of_the_tables() -> None:
    """Both programs do; it was Adagrad whatever the command line said."""
    rowwise = import_dlrm([samples.SMALL_DLRM]).workload
    assert rowwise.dense_optimizer is DenseOptimizer.ADAGRAD
    for line in ("dlrm_s_pytorch.py --num-batches 5", "dlrm_main.py --seed 1"):
        workload = import_dlrm([line]).workload
        assert (workload.optimizer, workload.dense_optimizer) == ("sgd", "sgd")
    adagrad = import_dlrm(["dlrm_main.py --adagrad"]).workload
    assert adagrad.dense_optimizer is DenseOptimizer.ADAGRAD


def test_torchrec_dlrm_may_multiply_in_tf32() -> None:
    assert import_dlrm(["dlrm_main.py --seed 1"]).workload.dense.dtype is DataType.FP32
    assert import_dlrm(["dlrm_main.py --allow_tf32"]).workload.dense.dtype is DataType.TF32


def test_dlrm_does_not_know_the_law_of_a_trace() -> None:
    assert import_dlrm([samples.SMALL_DLRM]).law_is_known
    traced = import_dlrm([samples.SMALL_DLRM + " --data-generation=synthetic"])
    assert not traced.law_is_known
    assert "uniform indices" in traced.assumed["tables"]


def test_dlrm_of_criteo() -> None:
    line = "dlrm_s_pytorch.py --data-generation=dataset --data-set=kaggle --max-ind-range=1000000 "
    line += "--arch-sparse-feature-size=16 --arch-mlp-bot=13-512-16 --arch-mlp-top=512-1"
    imported = import_dlrm(line.split())
    rows = [t.num_embeddings for t in imported.workload.tables]
    assert rows == [min(n, 1_000_000) for n in KAGGLE_ROWS]
    assert {"tables", "training.batch_size_per_rank"} <= set(imported.assumed)
    with pytest.raises(InvalidInputError, match="add --arch-embedding-size"):
        import_dlrm([line.replace("kaggle", "terabyte")])


def test_torchrec_dlrm() -> None:
    workload = import_dlrm([samples.TORCHREC_DLRM]).workload
    assert len(workload.tables) == 26
    assert workload.tables[25].features[0].name == "cat_25"
    assert workload.tables[0].module == "model.sparse_arch.embedding_bag_collection"
    assert workload.batch_size_per_rank == 128
    assert workload.optimizer is Optimizer.ADAGRAD
    dense = workload.dense
    assert dense.interaction is Interaction.DCN
    assert (dense.dcn_num_layers, dense.dcn_low_rank_dim) == (2, 16)


def test_multi_hot_sizes_are_pooling_factors() -> None:
    hot = [1 + i % 5 for i in range(26)]
    flags = f"--embedding_dim 64 --multi_hot_sizes {','.join(map(str, hot))}"
    tables = import_dlrm(flags.split()).workload.tables
    assert [t.pooling_factor for t in tables] == hot


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("dlrm_main.py --embeding_dim 64", "did you mean '--embedding_dim'"),
        ("dlrm_main.py --embedding_dim", "needs a value"),
        ("dlrm_main.py --embedding_dim x", "--embedding_dim: value 'x'"),
        ("dlrm_main.py --embedding_dim 128", "must end with the embedding dimension, 128"),
        ("dlrm_main.py --num_embeddings_per_feature 1,2", "26 entries"),
        ("dlrm_main.py --adagrad=7", "takes no value but True or False"),
        ("dlrm_main.py 64", "belongs to no flag"),
        ("dlrm_main.py --interaction_type tree", "original, dcn, projection"),
        ("dlrm_s_pytorch.py --qr-flag", "--qr-flag"),
        ("dlrm_s_pytorch.py --inference-only", "trains nothing"),
        ("dlrm_s_pytorch.py --arch-mlp-bot=13-7", "--arch-mlp-bot"),
        ("dlrm_s_pytorch.py --optimizer adam", "sgd, adagrad, rwsadagrad"),
        ("dlrm_s_pytorch.py --data-generation randm", "random, synthetic, dataset"),
        ("dlrm_s_pytorch.py --arch-embedding-size=4-0-2", "--arch-embedding-size"),
        ("python train.py --lr 3", "neither dlrm_s_pytorch.py"),
        ("python 'dlrm_main.py", "check its quotes"),
        ("mpirun -np 999999 dlrm_s_pytorch.py", "at most 65,536"),
        ("", "no command line"),
    ],
)
def test_command_lines_that_are_wrong(line: str, words: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        import_dlrm([line])
    assert words in str(caught.value)


def test_ranks_do_not_divide_a_batch_that_is_per_rank() -> None:
    with pytest.raises(InvalidInputError, match="per rank already, leave --gpus out"):
        import_dlrm([samples.TORCHREC_DLRM], world_size=8)


@pytest.mark.parametrize(
    ("line", "ranks"),
    [
        ("torchrun --nproc_per_node=4 --nnodes 2 dlrm_main.py --adagrad", 8),
        ("torchx run dist.ddp -j 2x8 --script dlrm_main.py -- --adagrad | tee log", 16),
        ("mpirun -n 3 dlrm_s_pytorch.py --use-gpu > out 2>&1", 3),
        ("python dlrm_main.py", None),
    ],
)
def test_launchers(line: str, ranks: int | None) -> None:
    assert parse_dlrm_command([line]).world_size == ranks


def test_fbgemm(tmp_path: Path) -> None:
    imported = import_fbgemm(save(tmp_path, samples.tbe_config()))
    workload = imported.workload
    assert [t.num_embeddings for t in workload.tables] == [1000, 50, 1]
    assert (workload.batch_size_per_rank, workload.index_bytes) == (256, 4)
    assert all(t.is_weighted and t.pooling_factor == 4 for t in workload.tables)
    check_readable(imported, tmp_path)


@pytest.mark.parametrize(
    ("heavy", "q", "s"),
    [([0.3, 0.1], 2.5, 1.1), ([], 2.5, 1.1), ([], 1.0, 0.9), ([], 0.25, 1.3), ([0.002], 4.0, 0.0)],
)
def test_fbgemm_laws(heavy: list[float], q: float, s: float, tmp_path: Path) -> None:
    """Heavy rows keep their probability; row k of the others has one proportional to (k + q)^-s."""
    config = samples.tbe_config()
    config["indices_params"] |= {"heavy_hitters": heavy, "zipf_q": q, "zipf_s": s}
    law = import_fbgemm(save(tmp_path, config)).workload.tables[0].distribution
    weights = (np.arange(len(heavy), 1000) + q) ** -s
    tail = (1 - sum(heavy)) * weights / weights.sum()
    expected = np.cumsum(sorted([*heavy, *tail], reverse=True))
    for rows in (1, 2, 3, 10, 100, 999, 1000):
        assert law.access_share(rows) == pytest.approx(expected[rows - 1], rel=1e-3)


def test_fbgemm_specs_map_features_to_tables(tmp_path: Path) -> None:
    config = samples.tbe_config()
    config |= {"embedding_specs": [[10, 4], [20, 8]], "feature_table_map": [1, 0, 1]}
    config["pooling_params"]["Ls"] = [1, 2.5, 3]
    tables = import_fbgemm(save(tmp_path, config)).workload.tables
    assert [(t.num_embeddings, t.embedding_dim) for t in tables] == [(10, 4), (20, 8)]
    assert [[(f.name, f.pooling_factor) for f in t.features] for t in tables] == [
        [("f1", 2.5)],
        [("f0", 1.0), ("f2", 3.0)],
    ]


def test_fbgemm_batches_of_several_lookups_are_scaled(tmp_path: Path) -> None:
    small, large = samples.tbe_config(), samples.tbe_config()
    large["batch_params"]["B"] = 512
    imported = import_fbgemm(save(tmp_path, {"one": small, "two": large}))
    tables = imported.workload.tables
    assert [t.name for t in tables[::3]] == ["one_t0", "two_t0"]
    assert [t.pooling_factor for t in tables[::3]] == [4, 8]
    check_readable(imported, tmp_path)


def test_fbgemm_says_that_it_leaves_mixed_columns_out(tmp_path: Path) -> None:
    config = samples.tbe_config()
    config["mixed_dim"] = True
    assert "mixed_dim" not in str(import_fbgemm(save(tmp_path, config | {"Ds": [4, 8, 8]})).unsaid)
    assert "mixed_dim" in str(import_fbgemm(save(tmp_path, config)).unsaid)


@pytest.mark.parametrize(
    ("keys", "value", "words"),
    [
        (("T",), 0, "T: value 0: must be at least 1"),
        (("Es",), [1, 2], "Es: value [1, 2]: must have 3 entries"),
        (("D",), 20_000, "D: value 20000"),
        (("weighted",), "yes", "weighted: value 'yes'"),
        (("feature_table_map",), [0, 0, 1], "must agree in E and D"),
        (("indices_params", "heavy_hitters"), [0.9, 0.9], "must sum to at most 1"),
        (("indices_params", "zipf_s"), 11, "indices_params.zipf_s"),
        (("indices_params", "index_dtype"), "int8", "torch.int32, torch.int64"),
        (("batch_params",), None, "batch_params: key 'B' is missing"),
        (("pooling_params", "L"), None, "pooling_params: key 'L' is missing"),
    ],
)
def test_fbgemm_values_that_are_wrong(
    keys: tuple[str, ...], value: object, words: str, tmp_path: Path
) -> None:
    config: Any = samples.tbe_config()
    part = config
    for key in keys[:-1]:
        part = part[key]
    part[keys[-1]] = value
    with pytest.raises(InvalidInputError) as caught:
        import_fbgemm(save(tmp_path, config))
    assert words in str(caught.value)


def test_param(tmp_path: Path) -> None:
    imported = import_param(save(tmp_path, samples.param_config()))
    workload = imported.workload
    assert [(t.num_embeddings, t.embedding_dim) for t in workload.tables] == [(100, 64), (2000, 8)]
    table = workload.tables[0]
    assert (table.dtype, table.pooling, table.is_weighted) == (DataType.FP16, Pooling.MEAN, True)
    assert (workload.batch_size_per_rank, workload.optimizer) == (512, Optimizer.SGD)
    assert table.pooling_factor == 20
    assert table.distribution == Uniform(num_embeddings=100)
    check_readable(imported, tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c["config"].append(c["config"][0]), "config: value"),
        (lambda c: c["config"][0]["build"][0]["args"].pop(), "'weights_precision' is missing"),
        (
            lambda c: c["config"][0]["input"][0]["args"][0].update(__range__=True),
            "sweeps over values",
        ),
        (lambda c: c["config"][0]["build"][0]["args"][0].update(name="x"), "must be one of"),
        (
            lambda c: c["config"][0]["build"][0]["kwargs"]["optimizer"].pop("value"),
            "kwargs: optimizer: value 'None'",
        ),
        (
            lambda c: c["config"][0]["build"][0]["kwargs"]["optimizer"].update(value="lion"),
            "kwargs: optimizer: value 'lion'",
        ),
        (lambda c: c["config"][0]["build"][0]["args"][1].update(value=[1]), "must have 2 entries"),
    ],
)
def test_param_values_that_are_wrong(
    change: Callable[[Any], object], words: str, tmp_path: Path
) -> None:
    value = copy.deepcopy(samples.param_config())
    change(value["SplitTableBatchedEmbeddingBagsCodegen"])
    with pytest.raises(InvalidInputError) as caught:
        import_param(save(tmp_path, value))
    assert words in str(caught.value)
    with pytest.raises(InvalidInputError, match="has no operator"):
        import_param(save(tmp_path, {"aten::add": value}))
