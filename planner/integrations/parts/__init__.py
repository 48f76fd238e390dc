"""Used by the parts that replace single parts of TorchRec's planner."""
