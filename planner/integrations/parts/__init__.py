"""What stands behind the parts of TorchRec's planner that can be replaced one by one."""
