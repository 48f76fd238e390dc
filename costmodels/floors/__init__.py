"""What no plan can take less than: phases and bounds of the iteration."""
