"""What any room may use: processes, text that is safe to print, CSV, the status of a search."""
