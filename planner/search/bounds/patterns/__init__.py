"""A bound from which pieces of tables a rank can hold together, where ranks hold few of them."""
