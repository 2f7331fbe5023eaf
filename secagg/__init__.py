"""Secure aggregation: the coordinator learns the sum of the silos' vectors and nothing else.

Bonawitz et al. 2017 double masking on a complete graph, every message signed, for 3 to 200 silos.
The package takes bytes and arrays and returns values: time, randomness, transport and disk belong
to the callers. Start reading at `secagg.client` and `secagg.server`, one class per state.

Covered, with the coordinator malicious, at most c silos colluding with it and the consortium root
honest: it sees one sum over at least t - c honest silos per context; all silos that release agreed
on descriptor, roster and survivors; the sum is exact when everyone follows; up to n - t silos may
drop at any step. Not covered: a coordinator that lies about the sum, poisoned inputs, availability,
who took part, quantum adversaries, and what a silo must remember across a crash.
"""
