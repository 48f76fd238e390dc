from costmodels.lookup.roofline import Roofline


class Mine(Roofline):  # type: ignore[misc]
    pass
