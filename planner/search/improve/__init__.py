"""Makes good plans better: by moves, by taking tables out, by sharing out pieces."""
