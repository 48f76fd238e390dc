"""Tools that every package here may use: processes, safe text, CSV, the status of a search."""
