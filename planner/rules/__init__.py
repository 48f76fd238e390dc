"""Rules that couple tables: groups, counts, and limits on what moves."""
