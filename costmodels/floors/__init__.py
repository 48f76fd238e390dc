"""Lower bounds on the iteration of every plan: the phases, and what follows from them."""
