"""Writes predicted iterations as profiler traces and other formats, and reads measured traces."""

from planner.trace.kineto import TraceFile, traces
from planner.trace.matrix import matrix_text

__all__ = ["TraceFile", "matrix_text", "traces"]
