"""Small files to load, and what their errors must look like."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.errors import InvalidInputError

WORKLOAD = """\
name: tiny
training:
  batch_size_per_rank: 512
  optimizer: adagrad
  output_dtype: fp16
dense: {num_dense_features: 4, bottom_mlp: [16, 8], top_mlp: [8, 1], interaction: cat}
memory: {reserve: 1 GiB}
tables:
  - name: user
    num_embeddings: 40_000
    embedding_dim: 64
    distribution: {kind: zipf, exponent: 1.05}
  - name: item
    num_embeddings: 5000
    embedding_dim: 32
    features: [clicked, bought]
    pooling_factor: [20, 4.5]
    constraints: {sharding_types: [row_wise, column_wise], min_column_width: 8}
  - {name: hour, num_embeddings: 24, embedding_dim: 16, count: 3}
constraints:
  - {tables: "hour_*", sharding_types: [data_parallel]}
"""

SYSTEM = """\
name: box
device:
  name: gpu
  hbm_capacity: 80 GiB (datasheet, some GPU)
  hbm_bandwidth: 2 TB/s (measured, triad)
  l2_capacity: 40 MB
  l2_bandwidth: 4 TB/s
  flops: {fp32: 20 TFLOP/s, bf16: 300 TFLOP/s}
  flops_efficiency: 0.7 (default)
  kernel_latency: 3 us
  row_half: 32 B
  update_efficiency: 0.6
  sort_rate: 5e9
host:
  ddr_capacity: 1 TB
  ddr_bandwidth: 300 GB/s
  device_link_bandwidth: 25 GB/s
  eager_call: 5 us
links:
  host: {latency: 10 us, bandwidth: 200 GB/s}
  network: {latency: 25 us, bandwidth: 20 GB/s}
layout: {gpus_per_host: 8}
"""

LINE = re.compile(r"^(?P<file>[^:\n]+)(:\d+)?: (?P<rest>.+)$")


def write(folder: Path, name: str, text: str | bytes) -> Path:
    """A file in ``folder``."""
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def changed(text: str, old: str, new: str) -> str:
    """``text`` with one piece replaced; the piece must be there."""
    assert old in text, old
    return text.replace(old, new, 1)


def refused(load: Callable[[], Any], path: Path, *expected: str) -> list[str]:
    """The lines of the one clean error that ``load`` raises; it leaves the folder as it was."""
    before = {p: p.read_bytes() for p in path.parent.iterdir() if p.is_file()}
    with pytest.raises(InvalidInputError) as caught:
        load()
    assert {p: p.read_bytes() for p in path.parent.iterdir() if p.is_file()} == before
    lines = caught.value.problems
    assert "\n".join(lines) == str(caught.value)
    for line in lines:
        assert "\n" not in line
        match = LINE.match(line)
        assert match is not None, line
        assert match["file"] == str(path), line
    found = [line for line in lines if all(text in line for text in expected)]
    assert found, (expected, lines)
    return lines
