"""Learning from runs of one's own: factors on a system's kinds of time, and how sure they are."""
