"""Makes plans for N hosts and for fewer hosts, such that few bytes move when a host is lost."""
