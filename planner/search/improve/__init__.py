"""Makes good plans better: by moves, by kicks, by taking tables out, by sharing out pieces."""
