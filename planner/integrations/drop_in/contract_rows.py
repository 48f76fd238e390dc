"""The rows of the contract on constraints, sharders and modules, and all rows together."""

from __future__ import annotations

from typing import Final

from planner.integrations.drop_in.contract import Place, Verdict, rows_of
from planner.integrations.drop_in.contract_planner import ARGUMENTS, TOPOLOGY
from planner.integrations.drop_in.contract_request import CONFIG, REQUEST

_HONOURED, _REFUSED, _WARNED = Verdict.HONOURED, Verdict.REFUSED, Verdict.WARNED

_LIMITS: Final = "constraints_of_a_table"
_PASSED: Final = "settings_of_kernels_reach_the_plan"

CONSTRAINTS: Final = rows_of(
    Place.CONSTRAINT,
    (
        "sharding_types",
        _HONOURED,
        "only these; grid_shard only if it is named; names that do not exist are warned of",
        "settings",
        "grid_shard_is_used_only_if_asked_for",
    ),
    (
        "compute_kernels",
        _HONOURED,
        "only these; refused where the sharder offers none of them",
        "settings",
        "a_kernel_that_the_sharder_lacks_is_refused",
    ),
    ("min_partition", _HONOURED, "no narrower column pieces", "workload", _LIMITS),
    (
        "pooling_factors",
        _HONOURED,
        "indices per sample; one value holds for each feature; where another number is not that "
        "of the features, their sum is spread evenly, with a warning",
        "workload",
        "a_wrong_number_of_pooling_factors_is_spread_and_said",
    ),
    (
        "num_poolings",
        _HONOURED,
        "multiplies the indices",
        "workload",
        "types_pooling_weights_and_features",
    ),
    (
        "batch_sizes",
        _HONOURED,
        "scale the indices of a feature",
        "workload",
        "batch_sizes_of_features_scale_their_indices",
    ),
    (
        "is_weighted",
        _HONOURED,
        "priced with weights; warned of where the module has none",
        "settings",
        "weights_of_a_constraint_are_priced",
    ),
    (
        "cache_params",
        _HONOURED,
        "field by field, see below",
        "planner",
        "settings_of_constraints_reach_the_plan",
    ),
    ("enforce_hbm", _HONOURED, "handed to the kernel", "rules", _PASSED),
    ("stochastic_rounding", _HONOURED, "handed to the kernel", "rules", _PASSED),
    ("bounds_check_mode", _HONOURED, "handed to the kernel", "rules", _PASSED),
    (
        "feature_names",
        _WARNED,
        "the model's names are used; warned of where they differ",
        "settings",
        "feature_names_of_a_constraint_are_compared",
    ),
    (
        "output_dtype",
        _HONOURED,
        "handed to the kernel; no plan whose ranks would exchange different types, with a warning "
        "where only such are left; the widest of all tables is priced, and said where they differ",
        "settings",
        "the_widest_output_type_is_priced_and_said",
    ),
    (
        "device_group",
        _HONOURED,
        "tables of another group than the compute device are left out",
        "settings",
        "tables_of_another_device_group_are_planned_apart",
    ),
    ("key_value_params", _HONOURED, "handed to the kernel", "rules", _PASSED),
    (
        "use_virtual_table",
        _WARNED,
        "the table's own configuration decides; warned of where they differ",
        "rules",
        "a_virtual_table_in_name_only_is_warned_of",
    ),
)

_CACHE: Final = "settings_of_a_cache_reach_the_plan"

CACHE: Final = rows_of(
    Place.CACHE,
    (
        "load_factor",
        _HONOURED,
        "the only cache size that is searched; warned of where it is missing",
        "settings",
        "the_cache_size_of_a_constraint_goes_before_that_of_the_sharder",
    ),
    ("algorithm", _HONOURED, "handed to the kernel", "rules", _CACHE),
    ("reserved_memory", _HONOURED, "handed to the kernel", "rules", _CACHE),
    ("precision", _HONOURED, "handed to the kernel", "rules", _CACHE),
    ("prefetch_pipeline", _HONOURED, "handed to the kernel", "rules", _CACHE),
    (
        "stats",
        _WARNED,
        "handed to the plan, not priced",
        "settings",
        "statistics_of_a_cache_are_warned_of",
    ),
    ("multipass_prefetch_config", _HONOURED, "handed to the kernel", "rules", _CACHE),
)

SHARDERS: Final = rows_of(
    Place.SHARDER,
    (
        "sharding_types",
        _HONOURED,
        "asked for the device that is planned; TorchRec's own on cpu for cuda, because it trains "
        "rows there",
        "settings",
        "a_sharder_is_asked_for_the_device_that_is_planned",
    ),
    (
        "compute_kernels",
        _HONOURED,
        "a kernel is searched with those types alone that it is offered with",
        "settings",
        "only_pairs_that_a_sharder_offers_are_searched",
    ),
    (
        "shardable_parameters",
        _HONOURED,
        "only these tables are planned",
        "rules",
        "only_shardable_parameters_are_planned",
    ),
    (
        "fused_params: optimizer",
        _HONOURED,
        "state and time; one without known cost is a warning and a wide interval",
        "workload",
        "every_optimizer_of_fbgemm_is_planned",
    ),
    (
        "fused_params: cache_load_factor",
        _HONOURED,
        "the only cache size that is searched, unless a constraint names one",
        "settings",
        "the_cache_size_of_a_sharder_is_kept",
    ),
    (
        "fused_params: output_dtype",
        _HONOURED,
        "priced, unless a constraint names one",
        "settings",
        "the_output_type_of_a_sharder_is_priced",
    ),
    (
        "qcomm_codecs_registry",
        _HONOURED,
        "priced in bytes and kernels, and in TorchRec's rating; codecs that scale rows are never "
        "summed",
        "codecs",
        "codecs_of_a_sharder_are_priced",
    ),
    (
        "use_index_dedup",
        _HONOURED,
        "distinct indices of unpooled tables are exchanged and looked up, and expanded after that",
        "workload",
        "distinct_indices_of_a_sharder_are_priced",
    ),
    (
        "storage_usage",
        _WARNED,
        "of a sharder that replaces it: our ledger counts memory",
        "rules",
        "a_memory_count_of_a_sharder_is_warned_of",
    ),
)

_EVERY: Final = "every_kind_of_module_is_planned"

MODULES: Final = rows_of(
    Place.MODULE,
    ("EmbeddingBagCollection", _HONOURED, "pooled tables", "rules", _EVERY),
    ("EmbeddingCollection", _HONOURED, "unpooled tables", "rules", _EVERY),
    (
        "FusedEmbeddingBagCollection",
        _HONOURED,
        "with the optimizer that it was given",
        "rules",
        _EVERY,
    ),
    (
        "FeatureProcessedEmbeddingBagCollection",
        _HONOURED,
        "rows are cut only if a constraint asks for it, as in TorchRec",
        "workload",
        "feature_processed_modules_keep_rows_together_unless_asked",
    ),
    (
        "ManagedCollisionEmbeddingBagCollection",
        _HONOURED,
        "refused where ranks would get parts of a bucket",
        "settings",
        "rows_are_not_cut_inside_a_bucket",
    ),
    ("ManagedCollisionEmbeddingCollection", _HONOURED, "likewise", "rules", _EVERY),
    (
        "PECEmbeddingCollection",
        _HONOURED,
        "of torchrec 1.9; priced as an EmbeddingCollection that is cut by rows",
        "rules",
        _EVERY,
    ),
    (
        "EmbeddingTower, EmbeddingTowerCollection",
        _HONOURED,
        "tables of a tower lie on one host",
        "modules",
        "tables_of_a_tower_lie_on_one_host",
    ),
    (
        "quantized EmbeddingBagCollection",
        _HONOURED,
        "INT8, INT4 and INT2, by their bytes",
        "quantized",
        "quantized_tables_of_every_width_are_planned",
    ),
    (
        "quantized EmbeddingCollection",
        _HONOURED,
        "likewise; on cpu not cut by columns, where TorchRec's runtime fails",
        "quantized",
        "quantized_unpooled_tables_are_not_cut_by_columns_on_cpu",
    ),
    (
        "mean pooling",
        _HONOURED,
        "no plan that changes what a module computes: all its tables are cut by rows or no "
        "mean-pooled one, with a warning where constraints leave only other plans",
        "sound",
        "means_are_cut_by_rows_all_together_or_not_at_all",
    ),
    (
        "unpooled tables cut by columns",
        _HONOURED,
        "pieces of one width in each module, for TorchRec runs no others; a warning where "
        "column_wise alone is left and whole tables do not fit",
        "sound",
        "unpooled_tables_are_cut_into_pieces_of_one_width",
    ),
    (
        "nn.EmbeddingBag",
        _HONOURED,
        "with `EmbeddingBagSharder`",
        "settings",
        "a_plain_embedding_bag_is_planned",
    ),
    (
        "virtual tables, key_value",
        _HONOURED,
        "with a wide interval",
        "kv",
        "a_virtual_table_keeps_its_kernel_rows_and_parameters",
    ),
    (
        "any other module with tables",
        _REFUSED,
        "an error names the module and its type",
        "rules",
        "a_module_of_unknown_kind_is_refused",
    ),
)

ROWS: Final = (*ARGUMENTS, *TOPOLOGY, *CONSTRAINTS, *CACHE, *SHARDERS, *MODULES, *REQUEST, *CONFIG)
"""All rows of the contract."""
