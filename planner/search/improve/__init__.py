"""Makes good plans better: by moves, by kicks, and by taking tables out and putting them back."""
