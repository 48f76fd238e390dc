"""Learns from the user's runs: factors on the kinds of time of a system, and how sure they are."""
