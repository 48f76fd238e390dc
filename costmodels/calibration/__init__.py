"""Constants of one machine, fitted to microbenchmarks that were run on it."""
