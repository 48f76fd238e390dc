"""Hashes the files that a system names, which have what was measured on it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from costmodels.topology import Topology
from planner.io.system.residual_file import residual_path


def measured_hash(topology: Topology) -> str:
    """SHA-256 over a system's calibration, learned factors and own curves; empty without any."""
    named = [topology.calibration] if topology.calibration else []
    named += [name for name in topology.collective_curves if name.endswith(".csv")]
    files = [path for path in (*map(Path, named), residual_path(topology)) if path.is_file()]
    if not files:
        return ""
    return hashlib.sha256(
        b"".join(hashlib.sha256(f.read_bytes()).digest() for f in files)
    ).hexdigest()
