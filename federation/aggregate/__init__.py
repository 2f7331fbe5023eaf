"""How a sum becomes the next adapter: one small file for each method, in a literal registry."""

from federation.aggregate.aggregator import FIRST_ROUND, Aggregator
from federation.aggregate.registry import AGGREGATORS, REFUSED_METHODS, make_aggregator

__all__ = ["AGGREGATORS", "FIRST_ROUND", "REFUSED_METHODS", "Aggregator", "make_aggregator"]
