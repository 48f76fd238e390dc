"""Gives CPU ranks that were never calibrated the constants of cores that were."""

from __future__ import annotations

from dataclasses import replace

from costmodels.topology import Topology
from planner.io.library import configs_folder
from planner.io.system.measured_files import load_constants


def on_reference_cores(topology: Topology) -> Topology:
    """The system with the shipped calibration, if its ranks are the cores of one uncalibrated host.

    The rates that a file gives for CPU ranks describe a device without fixed costs. Real cores have
    one stream, look up tables one by one, and copy exchanges themselves. In this all cores are
    alike; they differ in the speed of each kind of work, which a fit finds. Factors that were
    fitted to the rates of the file mean nothing for the calibration, and are removed.
    """
    is_known = bool(topology.calibration) or topology.device.name != "cpu"
    if is_known or topology.num_hosts > 1 or topology.collective_curves:
        return topology
    path = configs_folder() / "calibrations" / "cpu_gloo.calibration.json"
    latency_s = load_constants(str(path)).kernel_latency_s
    device = replace(topology.device, single_stream=True, kernel_latency_s=latency_s)
    return replace(topology, calibration=str(path), device=device, fitted=None)
