"""Aggregation methods of the lab: every one of them sees means of clipped vectors and no more."""
