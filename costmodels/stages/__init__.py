"""From work to the times of stages: lookups, exchanges, codecs, dense part, host."""
