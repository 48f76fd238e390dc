"""A result in words and tables. Each file is one section, found by its file name."""
