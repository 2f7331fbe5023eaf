"""``python -m tests.adversary.mutants.dp_mutants``: break privacy on purpose, one way at a time.

Prints one line per mutant with the test that caught it and, last, the count as JSON. Ends with
status 1 unless every mutant is caught. Arguments, if any, choose mutants by a part of their name;
``--table`` prints the table of ``docs/privacy.md`` instead of running anything.
"""

from __future__ import annotations

import json
import sys
import time

from tests.adversary.mutants import dp_account, dp_composition, dp_noise
from tests.adversary.mutants.mutant import Mutant
from tests.adversary.mutants.runner import BaselineError, Verdict, run_all

MUTANTS: tuple[Mutant, ...] = (
    *dp_noise.MUTANTS,
    *dp_account.MUTANTS,
    *dp_composition.MUTANTS,
)


def run(chosen: list[str]) -> int:
    """Run the mutants; whether all of them were caught is the exit status."""
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
            print(f"{outcome.verdict:8} {name:28} {disables}\n{'':9}{outcome.shown}", flush=True)
    except BaselineError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{time.monotonic() - started:.0f} s")
    print(json.dumps({"mutants": len(mutants), "caught": caught}, separators=(",", ":")))
    return 0 if mutants and caught == len(mutants) else 1


def table() -> str:
    """Which test is to catch which mutant, as Markdown."""
    lines = ["| mutant | what it takes away | caught by |", "| --- | --- | --- |"]
    for mutant in MUTANTS:
        tests = ", ".join(f"`{test.removeprefix('tests/')}`" for test in mutant.tests)
        shown = f", {mutant.phrase!r}" if mutant.phrase else ""
        lines.append(f"| {mutant.name} | {mutant.disables} | {tests}{shown} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    if arguments == ["--table"]:
        print(table())
        return 0
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
