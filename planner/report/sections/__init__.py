"""Parts of the reports: one file per part, found by its file name, for all kinds of output."""
