"""What couples tables: groups, counts, and bytes that move."""
