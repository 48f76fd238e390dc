"""The parts of reports: one file for each part, found by its file name, for all output forms."""
