"""A result in words and tables: how parts are written; ``sections`` holds the parts."""
