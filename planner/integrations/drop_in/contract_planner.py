"""The rows of the contract on the planner's arguments and on TorchRec's topology."""

from __future__ import annotations

from typing import Final

from planner.integrations.drop_in.contract import Place, Verdict, rows_of

_HONOURED, _WARNED = Verdict.HONOURED, Verdict.WARNED

_ASKED: Final = "the_search_is_asked_the_right_question"

ARGUMENTS: Final = rows_of(
    Place.ARGUMENT,
    ("topology", _HONOURED, "ranks, memories and bandwidths of the search", "planner", _ASKED),
    ("batch_size", _HONOURED, "samples per rank; 512 as in TorchRec if None", "planner", _ASKED),
    (
        "enumerator",
        _HONOURED,
        "only (type, kernel) pairs that it lists for a table are searched",
        "settings",
        "pairs_of_an_enumerator_are_obeyed",
    ),
    (
        "storage_reservation",
        _HONOURED,
        "memory that it keeps is not planned on",
        "planner",
        "a_storage_reservation_is_obeyed",
    ),
    (
        "proposer",
        _WARNED,
        "kept as `_proposers`, not used",
        "rules",
        "replaced_parts_are_warned_of",
    ),
    (
        "partitioner",
        _WARNED,
        "kept as `_partitioner`, not used",
        "rules",
        "replaced_parts_are_warned_of",
    ),
    (
        "performance_model",
        _WARNED,
        "kept as `_perf_model`, not used",
        "rules",
        "replaced_parts_are_warned_of",
    ),
    ("stats", _HONOURED, "logs the chosen plan", "planner", "statistics_are_logged"),
    (
        "constraints",
        _HONOURED,
        "field by field, see below; names of tables that do not exist are warned of",
        "workload",
        "assumptions_are_said",
    ),
    ("debug", _HONOURED, "handed to the statistics", "rules", "debug_reaches_the_statistics"),
    ("callbacks", _HONOURED, "change the options last", "planner", "callbacks_have_the_last_word"),
    (
        "timeout_seconds",
        _HONOURED,
        "most seconds of the planning; the search ends by its work, whatever the limit",
        "outcome",
        "a_timeout_does_not_change_the_budget",
    ),
    (
        "plan_loader",
        _HONOURED,
        "its plan is used if made for the same inputs",
        "planner",
        "a_stored_plan_is_used_if_made_for_the_same_inputs",
    ),
    (
        "system",
        _HONOURED,
        "rates, links and latencies of the prediction, in place of the topology's bandwidths",
        "system",
        "rates_of_the_base_can_be_kept",
    ),
    (
        "hints",
        _HONOURED,
        "index distributions, dense part, pipeline, output type, reserve",
        "outcome",
        "hints_reach_the_search",
    ),
    ("strategy", _HONOURED, "name of the search", "planner", _ASKED),
    ("objective", _HONOURED, "what is made small", "planner", _ASKED),
    ("seed", _HONOURED, "of the search", "planner", _ASKED),
    (
        "plan_file",
        _HONOURED,
        "is used instead of a search after it was checked against the model; a warning where it "
        "breaks constraints or does not fit",
        "planner",
        "a_bare_plan_of_torchrecs_comes_back",
    ),
    (
        "max_evaluations",
        _HONOURED,
        "work after which the search ends",
        "outcome",
        "the_number_of_evaluations_can_be_set",
    ),
    (
        "memory_headroom",
        _HONOURED,
        "share of the memory that stays free on every rank; an error where no plan leaves it",
        "outcome",
        "headroom_is_kept_free_on_every_rank",
    ),
)

_PER_MS: Final = "bandwidths_per_ms_become_bandwidths_per_s"
_FACTORS: Final = "factors_of_a_topology_are_warned_of"

TOPOLOGY: Final = rows_of(
    Place.TOPOLOGY,
    (
        "world_size",
        _HONOURED,
        "also where ranks do not fill hosts: then without table_row_wise, with a warning",
        "settings",
        "ranks_that_do_not_fill_hosts_are_planned",
    ),
    (
        "compute_device",
        _HONOURED,
        "cuda and cpu; mtia is priced like a GPU, with a warning",
        "settings",
        "mtia_is_planned_with_a_warning",
    ),
    ("hbm_cap", _HONOURED, "device memory of each rank", "planner", _ASKED),
    (
        "ddr_cap",
        _HONOURED,
        "host memory of each rank",
        "system",
        "the_device_memory_of_a_cpu_is_its_share_of_ddr",
    ),
    ("ssd_cap", _HONOURED, "key_value tables have to fit", "rules", "a_full_ssd_is_refused"),
    ("local_world_size", _HONOURED, "ranks of a host", "planner", _ASKED),
    (
        "pod_size",
        _HONOURED,
        "a pod is one host of the search",
        "system",
        "a_pod_is_one_host_of_ours",
    ),
    ("hbm_mem_bw", _HONOURED, "unless `system` is given", "system", _PER_MS),
    (
        "ddr_mem_bw",
        _HONOURED,
        "of CPU ranks, unless `system` is given; nothing on GPUs depends on it",
        "system",
        _PER_MS,
    ),
    ("ssd_mem_bw", _WARNED, "only TorchRec's estimates read it", "settings", _FACTORS),
    ("hbm_to_ddr_mem_bw", _HONOURED, "unless `system` is given", "system", _PER_MS),
    ("intra_host_bw", _HONOURED, "unless `system` is given", "system", _PER_MS),
    ("inter_host_bw", _HONOURED, "unless `system` is given", "system", _PER_MS),
    ("bwd_compute_multiplier", _WARNED, "only TorchRec's estimates read it", "settings", _FACTORS),
    (
        "custom_topology_data",
        _HONOURED,
        "memories that differ from rank to rank; rows are cut into equal blocks all the same, with "
        "a warning",
        "system",
        "ranks_may_differ_in_memory",
    ),
    (
        "weighted_feature_bwd_compute_multiplier",
        _WARNED,
        "only TorchRec's estimates read it",
        "settings",
        _FACTORS,
    ),
    (
        "uneven_sharding_perf_multiplier",
        _WARNED,
        "only TorchRec's estimates read it",
        "settings",
        _FACTORS,
    ),
    (
        "generalized_comms_bandwidths",
        _WARNED,
        "only its intra_host_bw and inter_host_bw are used",
        "rules",
        "bandwidths_by_collective_are_warned_of",
    ),
    (
        "created_by_factory",
        _HONOURED,
        "topologies made in either way are planned alike",
        "rules",
        "a_topology_made_by_hand_is_planned_alike",
    ),
)
