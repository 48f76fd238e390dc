"""Better plans from good ones."""
