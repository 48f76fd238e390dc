"""The command line: it parses flags, calls the planner, and prints; nothing is decided here."""
