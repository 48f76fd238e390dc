"""Plans for N hosts and for fewer, so that a lost host moves few bytes."""
