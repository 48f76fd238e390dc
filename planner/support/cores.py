"""How many cores this process may use; every place that starts processes asks here."""


def usable_cores() -> int:
    """The number of cores that this process may use: its affinity, within the quota of a container.

    A quota of 1.5 cores counts as 2, so that all of it can be used.
    """
    import joblib

    return int(joblib.cpu_count())
