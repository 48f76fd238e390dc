"""Writes results as text, Markdown, CSV and HTML; ``sections`` has the parts of a report."""
