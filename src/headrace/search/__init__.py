"""Search for the best order of a few things: which order to try next, when to stop with one, where its policy begins.

Nothing here trains or knows an environment. `orders` is about permutations, `search` asks and is told, `surrogate` and `kernel`
are its Gaussian process (scikit-learn: ``pip install 'PATH_OF_THE_CLONE[search]'``), `calibration` compares what was predicted with
what came, `stopping` says when enough was seen of one order.
"""

from headrace.search.calibration import Calibration, Forecast
from headrace.search.orders import Order, distance, nearest
from headrace.search.search import Choice, OrderSearch
from headrace.search.stopping import EarlyStopping, Look, StopReason

__all__ = [
    "Calibration",
    "Choice",
    "EarlyStopping",
    "Forecast",
    "Look",
    "Order",
    "OrderSearch",
    "StopReason",
    "distance",
    "nearest",
]
