"""Writes predicted iterations as profiler traces and other formats, and reads measured traces."""

from planner.trace.kineto import TraceFile, matrix_text, traces

__all__ = ["TraceFile", "matrix_text", "traces"]
