"""What does a sharding plan cost? The nouns, and the physics behind every prediction."""

__version__ = "0.1.0"
