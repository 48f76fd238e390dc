"""Predictions held against measured systems and real runs."""
