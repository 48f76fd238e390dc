"""One problem, from its constraints to the result: prepare, search, compare, answer."""
