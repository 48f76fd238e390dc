"""Parts that strategies are made of: bounds, constructions, moves."""
