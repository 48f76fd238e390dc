"""The rows of the contract on TorchRec 1.9's planning requests, which our provider plans."""

from __future__ import annotations

from typing import Final

from planner.integrations.drop_in.contract import Place, Verdict, rows_of

_HONOURED, _REFUSED, _WARNED = Verdict.HONOURED, Verdict.REFUSED, Verdict.WARNED

_SAME: Final = "a_dry_run_returns_the_plans_of_the_command_line"
_SIZES: Final = "sizes_of_a_request_are_obeyed"
_OVERRIDES: Final = "overrides_of_a_system_are_obeyed"
_KEPT: Final = "a_storage_reservation_follows_the_request"
_UNUSED: Final = "settings_that_change_nothing_are_warned_of"
_CONFIG: Final = "pipeline_debug_and_limit_of_a_configuration_are_obeyed"
_CACHES: Final = "what_no_policy_reads_plan_caches_and_large_hosts_are_warned_of"
_LABELS: Final = "labels_of_a_request_reach_the_result"

_SEARCH: Final = "its search stands in for it"
_MODELS: Final = "the cost models of the system stand in for it"

SEARCH_FIELDS: Final = (
    "proposer_type",
    "proposer_config",
    "partitioner_type",
    "partitioner_sort_by",
    "balance_modules",
    "memory_balanced_max_search_count",
    "memory_balanced_tolerance",
    "performance_model",
)
"""Fields of ``PlannerConfig`` on parts of TorchRec's search."""

MODEL_FIELDS: Final = (
    "use_hardware_based_compute",
    "use_hardware_based_bandwidth",
    "use_batch_inputs_for_expected_cache_fetches",
    "use_linear_regression_prefetch_estimate",
    "bwd_compute_multiplier",
)
"""Fields of ``PlannerConfig`` on TorchRec's estimates."""

REQUEST: Final = rows_of(
    Place.REQUEST,
    ("sku_list", _HONOURED, "names or files of systems", "provider", _SAME),
    ("model", _HONOURED, "a module, or a function that makes it", "provider", _SAME),
    ("sharders", _HONOURED, "as in `plan`", "provider", _SAME),
    *(
        (name, _HONOURED, "the system at this size", "provider", _SIZES)
        for name in ("world_size", "local_world_size", "pod_size", "batch_size")
    ),
    *(
        (name, _HONOURED, "memory of a rank, in GiB, in place of the system's", "provider", _SIZES)
        for name in ("hbm_gb", "ddr_gb")
    ),
    (
        "per_sku_overrides",
        _HONOURED,
        "before `hbm_gb` and `ddr_gb`; bandwidths in GiB/s for all links of their level",
        "provider",
        _OVERRIDES,
    ),
    (
        "compute_device",
        _HONOURED,
        "cuda if it is not given",
        "provider",
        "a_device_and_constraints_of_a_request_are_obeyed",
    ),
    ("constraints", _HONOURED, "field by field, see above", "provider", _SAME),
    (
        "storage_reservation",
        _HONOURED,
        "without any, our ledger counts what is kept, as in `shardplan plan`",
        "provider",
        _KEPT,
    ),
    ("planner_config", _HONOURED, "field by field, see below", "provider", _KEPT),
    (
        "capture_search_space",
        _HONOURED,
        "the list of TorchRec's enumerator",
        "provider",
        _LABELS,
    ),
    ("cache_config", _WARNED, "TorchRec's orchestrators keep no plans", "provider", _CACHES),
    *(
        (name, _HONOURED, "a label: it reaches hashes and results", "provider", _LABELS)
        for name in ("training_framework", "launcher_hardware", "request_id")
    ),
)

CONFIG: Final = rows_of(
    Place.CONFIG,
    (
        "planner_variant",
        _REFUSED,
        "any other than `oss`",
        "provider",
        "another_planner_and_another_pipeline_are_refused",
    ),
    (
        "storage_reservation_policy",
        _HONOURED,
        "`sku_aware`, which TorchRec does not build, fails by name",
        "provider",
        "a_policy_that_torchrec_does_not_build_fails_by_name",
    ),
    ("storage_reservation_percentage", _HONOURED, "alone: TorchRec's heuristic", "provider", _KEPT),
    *(
        (name, _HONOURED, "of TorchRec's heuristic; warned of with others", "provider", _KEPT)
        for name in ("dense_tensor_estimate", "parameter_multiplier")
    ),
    ("pipeline_type", _HONOURED, "the pipeline that is priced", "provider", _CONFIG),
    ("debug", _HONOURED, "passed to the statistics", "provider", _CONFIG),
    ("timeout_seconds", _HONOURED, "a safety by the clock", "provider", _CONFIG),
    *((name, _WARNED, _SEARCH, "provider", _UNUSED) for name in SEARCH_FIELDS),
    *((name, _WARNED, _MODELS, "provider", _UNUSED) for name in MODEL_FIELDS),
    ("manifold_path", _WARNED, "of a planner that is refused", "provider", _UNUSED),
    *(
        (name, _WARNED, "of a policy that TorchRec does not build", "provider", _UNUSED)
        for name in ("model_base_bytes", "home_sku")
    ),
)
