"""``ramp``: latency and bandwidth, with a slow rise from one to the other."""

from dataclasses import dataclass
from typing import final

from costmodels.collective._curve import LinkModel


@final
@dataclass(frozen=True, slots=True)
class Ramp(LinkModel):
    """t = (floor^q + (bytes / rate)^q)^(1/q) with q = 0.6, on the busiest link of each rank.

    Floor (seconds) and rate (bytes per second) follow from the levels of links, the collective and
    the number of ranks (``_law.py``). Over a network of a named kind, t follows the law of that
    kind instead (:mod:`costmodels.fabrics`). The growing part is bytes / rate, which is never above
    t.

    Valid for all sizes, also for empty messages. It is within 6 % of measured curves if floor and
    rate are right, and within some 10 to 30 % if they come from data sheets.

    Sources:
        Thakur, Rabenseifner, Gropp 2005: alpha-beta cost of collectives
        Softness q = 0.6: fit to the curves of configs/calibrations/collectives.csv
    """
