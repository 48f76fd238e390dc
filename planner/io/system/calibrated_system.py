"""Writes a calibrated CPU as a system file, with its constants beside it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from costmodels.calibration.report import Calibration
from costmodels.cpu.operators import memory_s
from costmodels.measured.cpu_constants import CpuConstants
from planner.io.system.calibration_file import write_calibration
from planner.io.workload.yaml_lines import scalar_text
from planner.support.atomic import write_text_atomic

_HEADER = """\
# Ranks on the cores of one machine, over gloo; written by `shardplan calibrate`.
# What the models use stands in the calibration file; the numbers here are for people and for
# commands that know nothing of it.
"""

_NOT_IN_NOTES: Final = re.compile(r"[,:#\"']")
"""Characters that separate the parts of a value in the file, or end it."""


def write_calibrated_system(
    path: Path, calibration: Calibration, *, memory_bytes: float
) -> tuple[Path, Path]:
    """Write ``path`` and, beside it, its calibration as JSON; returns both paths.

    Raises:
        InvalidInputError: the folder cannot be written.
    """
    beside = path.with_suffix(".calibration.json")
    write_calibration(beside, calibration)
    text = _text(path.stem, beside.name, calibration.constants, memory_bytes)
    write_text_atomic(path, text)
    return path, beside


def _text(name: str, calibration: str, constants: CpuConstants, memory_bytes: float) -> str:
    ranks = constants.world_size
    note = f"(calibrated, {_NOT_IN_NOTES.sub('', constants.machine)})"
    guess = "(default, not measured; the calibrated models do not use it)"
    crossing = 0.5 / max(constants.collective.all_to_all_s[1], 1e-15)
    flops = 2.0 / max(constants.dense.forward_s[2], 1e-15)
    sort = 1.0 / max(sum(constants.fused.backward_s[2:4]), 1e-15)
    share = f"{memory_bytes / 2**30 / ranks:.1f} GiB"
    call_us = 1e6 * constants.kernel_latency_s
    return f"""{_HEADER}name: {scalar_text(name)}
description: {scalar_text(constants.machine)}
device:
  name: cpu
  hbm_capacity: {share} {note}
  hbm_bandwidth: {_stream_rate_text(constants, note)}
  l2_capacity: {constants.l2_bytes / 1e6:.3f} MB {note}
  l2_bandwidth: 50 GB/s {guess}
  flops: {{fp32: "{flops / 1e9:.1f} GFLOP/s {note}"}}
  flops_efficiency: 1.0 {guess}
  kernel_latency: {call_us:.3f} us {note}
  row_half: 64 B {guess}
  update_efficiency: 0.5 {guess}
  sort_rate: {sort:.3e} {note}
host:
  ddr_capacity: {memory_bytes / 2**30:.1f} GiB {note}
  ddr_bandwidth: 10 GB/s {guess}
  device_link_bandwidth: 10 GB/s {guess}
  eager_call: 0 us {guess}
links:
  host:
    latency: {1e6 * constants.collective.all_to_all_s[0]:.1f} us {note}
    bandwidth: {crossing / 1e9:.3f} GB/s {note}
  network:
    latency: {1e6 * constants.collective.all_to_all_s[0]:.1f} us {note}
    bandwidth: {crossing / 1e9:.3f} GB/s {note}
layout: {{gpus_per_host: {ranks}}}
calibration: {scalar_text(calibration)}
"""


def _stream_rate_text(constants: CpuConstants, note: str) -> str:
    """The rate of elementwise functions on data outside caches, such as the casts of codecs."""
    if constants.operators is None:
        return "10 GB/s (default, not measured; only codecs of exchanges use it)"
    counts_s = dict(constants.operators.forward_s)["elementwise"]
    return f"{1e-9 / max(memory_s(counts_s), 1e-12):.1f} GB/s {note}"
