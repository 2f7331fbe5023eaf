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

from secagg import client, server
from secagg.descriptor import (
    AggregationId,
    Descriptor,
    MetricsLayout,
    SignedDescriptor,
    check_descriptor,
    sign_descriptor,
    verify_descriptor,
)
from secagg.errors import (
    Check,
    MalformedMessageError,
    ParameterError,
    SecAggError,
    UnexpectedMessageError,
    VerificationError,
)
from secagg.parameters import Parameters, threshold
from secagg.roster import Roster, RosterEntry, SignedRoster, sign_roster, verify_roster

__all__ = [
    "AggregationId",
    "Check",
    "Descriptor",
    "MalformedMessageError",
    "MetricsLayout",
    "ParameterError",
    "Parameters",
    "Roster",
    "RosterEntry",
    "SecAggError",
    "SignedDescriptor",
    "SignedRoster",
    "UnexpectedMessageError",
    "VerificationError",
    "check_descriptor",
    "client",
    "server",
    "sign_descriptor",
    "sign_roster",
    "threshold",
    "verify_descriptor",
    "verify_roster",
]
