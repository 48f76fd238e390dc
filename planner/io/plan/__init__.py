"""Plans and results."""
