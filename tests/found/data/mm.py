from costmodels.lookup.roofline import Roofline


class Mine(Roofline):
    pass
