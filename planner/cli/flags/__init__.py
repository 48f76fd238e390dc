"""Turns command-line flags into problems."""
