"""``python -m tests.adversary.mutants.secagg_mutants``: switch off each verification in turn.

Prints one line per mutant with the first failing test and, last, the count as JSON. Ends with
status 1 unless every mutant is caught. Arguments, if any, choose mutants by a part of their name.
"""

from __future__ import annotations

import json
import sys
import time

from tests.adversary.mutants import (
    secagg_bindings,
    secagg_border,
    secagg_cohorts,
    secagg_coordinator,
    secagg_digest_tree,
    secagg_documents,
    secagg_doors,
    secagg_durability,
    secagg_groups,
    secagg_heads,
    secagg_hybrid,
    secagg_keys,
    secagg_members,
    secagg_rosters,
    secagg_runs,
    secagg_silo,
    secagg_site,
    secagg_storage,
)
from tests.adversary.mutants.mutant import Mutant
from tests.adversary.mutants.runner import BaselineError, Verdict, run_all

MUTANTS: tuple[Mutant, ...] = (
    *secagg_documents.MUTANTS,
    *secagg_rosters.MUTANTS,
    *secagg_keys.MUTANTS,
    *secagg_silo.MUTANTS,
    *secagg_durability.MUTANTS,
    *secagg_heads.MUTANTS,
    *secagg_coordinator.MUTANTS,
    *secagg_digest_tree.MUTANTS,
    *secagg_border.MUTANTS,
    *secagg_storage.MUTANTS,
    *secagg_site.MUTANTS,
    *secagg_members.MUTANTS,
    *secagg_runs.MUTANTS,
    *secagg_doors.MUTANTS,
    *secagg_hybrid.MUTANTS,
    *secagg_cohorts.MUTANTS,
    *secagg_groups.MUTANTS,
    *secagg_bindings.MUTANTS,
)


def main(chosen: list[str]) -> int:
    mutants = [m for m in MUTANTS if not chosen or any(part in m.name for part in chosen)]
    if not mutants:
        print(f"no mutant has {' or '.join(chosen)} in its name", file=sys.stderr)
        return 1
    started = time.monotonic()
    caught = 0
    try:
        for outcome in run_all(mutants):
            caught += outcome.verdict is Verdict.CAUGHT
            name, disables = outcome.mutant.name, outcome.mutant.disables
            print(f"{outcome.verdict:8} {name:34} {disables}\n{'':9}{outcome.shown}", flush=True)
    except BaselineError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{time.monotonic() - started:.0f} s")
    print(json.dumps({"mutants": len(mutants), "caught": caught}, separators=(",", ":")))
    return 0 if mutants and caught == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
