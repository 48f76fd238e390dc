"""Writes predicted iterations as profiler traces and other formats, and reads measured traces."""
