"""Learns from runs on one's own system: factors on its kinds of time, and how sure they are."""
