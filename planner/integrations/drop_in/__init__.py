"""What stands behind ShardPlanner: search, TorchRec's own plan, memory, log, contract."""
