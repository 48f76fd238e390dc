"""What no plan can go below."""
