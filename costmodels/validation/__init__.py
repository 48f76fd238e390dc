"""Predicted against measured: scores, and how measurements on a shared machine are made."""
