"""Files of other tools as workloads and plans. One file, one tool."""
