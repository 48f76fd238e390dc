"""Work in, stage times out: lookups, exchanges, codecs, the dense part and its reductions."""
