"""Small files of our own in the shapes that other tools write."""

from __future__ import annotations

from typing import Any


def torchrec_shard(rank: int, row: int, rows: int, col: int, cols: int) -> dict[str, Any]:
    """One shard as TorchRec serializes it."""
    return {
        "shard_offsets": [row, col],
        "shard_sizes": [rows, cols],
        "placement": f"rank:{rank}/cuda:{rank}",
    }


def torchrec_plan() -> dict[str, Any]:
    """Two modules that share a table name; a replicated table without shards."""
    return {
        "plan": {
            "sparse.ebc": {
                "user": {
                    "sharding_type": "column_wise",
                    "compute_kernel": "fused",
                    "ranks": [0, 3],
                    "shards": [
                        torchrec_shard(0, 0, 5000, 0, 32),
                        torchrec_shard(3, 0, 5000, 32, 32),
                    ],
                },
                "shop": {
                    "sharding_type": "row_wise",
                    "compute_kernel": "fused_uvm",
                    "ranks": [0, 1],
                    "shards": [
                        torchrec_shard(0, 0, 50, 0, 16),
                        torchrec_shard(1, 50, 50, 0, 16),
                    ],
                },
                "hour": {
                    "sharding_type": "data_parallel",
                    "compute_kernel": "dense",
                    "ranks": [0, 1, 2, 3],
                    "shards": None,
                },
            },
            "other": {
                "shop": {
                    "sharding_type": "table_wise",
                    "compute_kernel": "fused",
                    "ranks": [2],
                    "shards": [torchrec_shard(2, 0, 70, 0, 8)],
                }
            },
        }
    }


def hugectr_config(kind: str = "LocalizedSlotSparseEmbeddingHash") -> dict[str, Any]:
    """A small DLRM on two hosts of two GPUs."""
    return {
        "solver": {
            "gpu": [[0, 1], [0, 1]],
            "batchsize": 1024,
            "mixed_precision": 1024,
            "input_key_type": "I64",
        },
        "optimizer": {"type": "Adam", "adam_hparam": {"alpha": 0.001}},
        "layers": [
            {
                "name": "data",
                "type": "Data",
                "label": {"top": "label", "label_dim": 1},
                "dense": {"top": "dense", "dense_dim": 4},
                "sparse": [{"top": "ids", "slot_num": 3, "max_nnz": [1, 2, 5]}],
            },
            {
                "name": "emb",
                "type": kind,
                "bottom": "ids",
                "top": "emb_out",
                "sparse_embedding_hparam": {
                    "slot_size_array": [1000, 20, 300],
                    "embedding_vec_size": 16,
                    "combiner": "mean",
                },
            },
            _fully_connected("fc1", "dense", 32),
            {"name": "r1", "type": "ReLU", "bottom": "fc1", "top": "r1"},
            _fully_connected("fc2", "r1", 16),
            {"name": "dot", "type": "Interaction", "bottom": ["fc2", "emb_out"], "top": "dot"},
            _fully_connected("fc3", "dot", 8),
            {"name": "norm", "type": "BatchNorm", "bottom": "fc3", "top": "norm"},
            _fully_connected("fc4", "norm", 1),
            {"type": "BinaryCrossEntropyLoss", "bottom": ["fc4", "label"], "top": "loss"},
        ],
    }


def _fully_connected(name: str, bottom: str, outputs: int) -> dict[str, Any]:
    return {
        "name": name,
        "type": "InnerProduct",
        "bottom": bottom,
        "top": name,
        "fc_param": {"num_output": outputs},
    }


def hugectr_plan() -> list[list[dict[str, Any]]]:
    """Table 0 on GPU 1, table 1 cut in two, table 2 copied."""
    return [
        [
            {
                "local_embedding_list": [] if gpu == 0 else [0],
                "global_embedding_list": [[], [0]],
                "table_placement_strategy": "localized",
            },
            {
                "local_embedding_list": [1],
                "global_embedding_list": [[1], [1]],
                "sharding_id": 1 - gpu,
                "num_sharding": 2,
                "table_placement_strategy": "localized",
            },
            {
                "local_embedding_list": [2],
                "global_embedding_list": [[2], [2]],
                "table_placement_strategy": "dp",
            },
        ]
        for gpu in range(2)
    ]


def tbe_config() -> dict[str, Any]:
    """Three features with one heavy law."""
    return {
        "T": 3,
        "E": 1000,
        "D": 32,
        "mixed_dim": False,
        "weighted": True,
        "batch_params": {"B": 256, "sigma_B": None, "Bs": None},
        "indices_params": {
            "heavy_hitters": [0.3, 0.1],
            "zipf_q": 2.5,
            "zipf_s": 1.1,
            "index_dtype": "torch.int32",
            "offset_dtype": "torch.int32",
        },
        "pooling_params": {"L": 4, "sigma_L": 2, "Ls": None},
        "use_cpu": False,
        "Es": [1000, 50, 1],
        "Ds": None,
        "feature_table_map": None,
    }


def param_config() -> dict[str, Any]:
    """Two tables, one of them with a value per table wrapped."""
    return {
        "SplitTableBatchedEmbeddingBagsCodegen": {
            "build_iterator": "RangeConfigIterator",
            "config": [
                {
                    "build": [
                        {
                            "args": [
                                {"type": "int", "name": "num_tables", "value": 2},
                                {"type": "genericlist", "name": "rows", "value": [100, 2000]},
                                {
                                    "type": "genericlist",
                                    "name": "dim",
                                    "value": [
                                        {"type": "int", "value": 64},
                                        {"type": "int", "value": 8},
                                    ],
                                },
                                {"type": "int", "name": "pooling", "value": 1},
                                {"type": "bool", "name": "weighted", "value": True},
                                {"type": "str", "name": "weights_precision", "value": "fp16"},
                            ],
                            "kwargs": {"optimizer": {"type": "str", "value": "exact_sgd"}},
                        }
                    ],
                    "input": [
                        {
                            "args": [
                                {"type": "int", "value": 512},
                                {"type": "int", "name": "pooling_factor", "value": 20},
                            ]
                        }
                    ],
                }
            ],
        }
    }


SMALL_DLRM = (
    "mpirun -np 4 python dlrm_s_pytorch.py --arch-embedding-size=1000-200-3 "
    "--arch-sparse-feature-size=16 --arch-mlp-bot 13-64-16 --arch-mlp-top 64-1 "
    "--mini-batch-size=2048 --num-indices-per-lookup=10 --optimizer rwsadagrad --use-gpu"
)
TORCHREC_DLRM = (
    "torchx run -s local_cwd dist.ddp -j 1x8 --script dlrm_main.py -- --embedding_dim 32 "
    "--num_embeddings 1000 --dense_arch_layer_sizes 64,32 --over_arch_layer_sizes 64,1 "
    "--interaction_type dcn --dcn_num_layers 2 --dcn_low_rank_dim 16 --batch_size 128 --adagrad"
)
