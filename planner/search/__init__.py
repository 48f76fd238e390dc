"""Search strategies: one file each, found by file name. ``parts`` holds what several share."""
