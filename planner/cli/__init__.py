"""The command line: parse, call the planner, print. Nothing else is decided here."""
