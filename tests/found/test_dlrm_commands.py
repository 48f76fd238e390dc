"""Command lines of DLRM as they stand in the programs' own pages."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from planner.io.importers.base import imported_text
from planner.io.importers.dlrm import import_dlrm, parse_dlrm_command

DATA = Path(__file__).parent / "data"
ROWS = (
    "40000000,39060,17295,7424,20265,3,7122,1543,63,40000000,3067956,405282,10,2209,11938,155,4,"
    "976,14,40000000,40000000,40000000,590152,12973,108,36"
)
MLPERF = f"""
export TOTAL_TRAINING_SAMPLES=4195197692 ;
export GLOBAL_BATCH_SIZE=65536 ;
export WORLD_SIZE=8 ;
torchx run -s local_cwd dist.ddp -j 1x8 --script dlrm_main.py -- \\
    --embedding_dim 128 \\
    --dense_arch_layer_sizes 512,256,128 \\
    --over_arch_layer_sizes 1024,1024,512,256,1 \\
    --synthetic_multi_hot_criteo_path $MATERIALIZED_DATASET_PATH \\
    --num_embeddings_per_feature {ROWS} \\
    --validation_freq_within_epoch $((TOTAL_TRAINING_SAMPLES / (GLOBAL_BATCH_SIZE * 20))) \\
    --epochs 1 --pin_memory --mmap_mode \\
    --batch_size $((GLOBAL_BATCH_SIZE / WORLD_SIZE)) \\
    --interaction_type=dcn --dcn_num_layers=3 --dcn_low_rank_dim=512 \\
    --adagrad --learning_rate 0.005
"""


def after_dashes(name: str) -> list[str]:
    words = shlex.split((DATA / name).read_text(encoding="utf-8"))
    return words[words.index("--") + 1 :]


def test_mlperf_reads_214_indices_and_says_where_they_are_from() -> None:
    imported = import_dlrm([MLPERF])
    assert sum(t.pooling_factor for t in imported.workload.tables) == 214
    assert imported.workload.batch_size_per_rank == 8192
    assert imported.world_size == 8
    assert "214 indices per sample" in imported.assumed["tables"]
    assert "214 indices per sample" in imported_text(imported)


def test_sizes_on_the_command_line_are_taken_and_ids_of_plain_criteo_are_one() -> None:
    said = MLPERF.replace("--epochs 1", f"--epochs 1 --multi_hot_sizes {','.join('2' * 26)}")
    assert sum(t.pooling_factor for t in import_dlrm([said]).workload.tables) == 52
    plain = MLPERF.replace("synthetic_multi_hot_criteo_path", "in_memory_binary_criteo_path")
    assert sum(t.pooling_factor for t in import_dlrm([plain]).workload.tables) == 26


def test_a_true_or_false_behind_a_flag_is_read() -> None:
    workload = import_dlrm(after_dashes("dlrm_bool_cmd.sh")).workload
    assert [t.num_embeddings for t in workload.tables] == [1000, 2000, 3000]
    assert (workload.tables[0].embedding_dim, workload.batch_size_per_rank) == (16, 256)


@pytest.mark.parametrize(
    ("written", "is_on"),
    [("", True), ("=True", True), ("=true", True), ("=1", True), (" True", True), (" 1", True),
     ("=False", False), ("=0", False), (" false", False), (" no", False)],
)  # fmt: skip
def test_every_switch_takes_a_boolean(written: str, is_on: bool) -> None:
    command = parse_dlrm_command([f"dlrm_main.py --adagrad{written} --batch_size 64"])
    assert ("adagrad" in command.flags) is is_on
    assert command.flags["batch_size"] == "64"


def test_a_torchx_component_stands_for_the_program() -> None:
    imported = import_dlrm(after_dashes("dlrm_torchx_component.sh"))
    assert imported.world_size == 8
    assert imported.workload.batch_size_per_rank == 512
    assert len(imported.workload.tables) == 26
    assert imported.workload.tables[25].num_embeddings == 9_000_000


@pytest.mark.parametrize(
    ("launcher", "ranks"),
    [
        ("torchx run comp.py:run_main --num_trainers 16 --", 16),
        ("srun --nodes=2 --ntasks-per-node=4 python dlrm_main.py", 8),
        ("srun -n 4 python -u dlrm_main.py", 4),
        ("accelerate launch --num_processes 4 my_dlrm.py", 4),
        ("N=4; torchrun --nproc-per-node $N dlrm_main.py", 4),
        ("CUDA_VISIBLE_DEVICES=0 python dlrm_main.py", None),
    ],
)
def test_launchers(launcher: str, ranks: int | None) -> None:
    command = parse_dlrm_command([f"{launcher} --batch_size 64"])
    assert (command.world_size, command.flags["batch_size"]) == (ranks, "64")
