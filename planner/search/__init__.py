"""Search strategies: one file each, found by the file's name; the folders hold what several share.

Each folder imports only those below it, in this order: ``improve`` makes good plans better,
``bounds`` computes what no plan can go below, ``construct`` makes plans from nothing, and
``common`` holds what all of them use.
"""
