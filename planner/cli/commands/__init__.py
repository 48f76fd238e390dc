"""One file per command, found by its file name; a trailing underscore avoids a Python name.

Each file holds one click command called ``command``. It imports modules (``from planner import
api``), which are loaded when something of them is first used, so that ``--help`` stays fast. Names
of modules are imported only where the flags need them, or where they load nothing heavy.
"""
