"""Reads files of other tools as workloads and plans; there is one module for each tool."""
