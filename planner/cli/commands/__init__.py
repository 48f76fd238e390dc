"""One file per command, found by its file name; a trailing underscore avoids a Python name.

Each file holds one click command called ``command``. At its top it imports nothing heavy, so that
``--help`` stays fast; the work is imported inside the functions.
"""
