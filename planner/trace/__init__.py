"""A predicted iteration in the formats that people read measured ones in, and back."""

from planner.trace.kineto import TraceFile, traces
from planner.trace.matrix import matrix_text

__all__ = ["TraceFile", "matrix_text", "traces"]
