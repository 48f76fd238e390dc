"""What runs of one's own say about a system: factors on kinds of time, and how far to trust them."""
