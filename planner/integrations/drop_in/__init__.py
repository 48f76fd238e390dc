"""The parts of ``ShardPlanner``: search, TorchRec's own plan, memory, log."""
