"""What ``run ask``, ``run plan --live`` and ``run start`` ask the silos beforehand.

Invariant: an amended plan is what the shown offers make of the plan, byte for byte, or an error: no
coordinator has anything else written where an admin's plan is expected.

Covered: one question or, where sites may negotiate, two; and what is made of the answers. Not
covered: whether the sites said so, whose signatures the coordinator verifies.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from chorale.v1 import admin_pb2
from federation.chain.preflight import Verdict
from federation.plan.negotiation import Amended, NotAmended, amend
from federation.wire import offer_from_proto
from ops.cli.envelope import CommandError, Exit, Format, say, show_result
from server.cli.client import CALL_TIMEOUT_S
from server.conductor.preflight import ABSENT, ANSWER_WITHIN_S, CANNOT_SAY, NO_ANSWER

__all__ = ["Asked", "ask_silos"]

_TURNS: Final = 3
"""Other admins may be asking: so many answers' times are waited for."""
_IN_WORDS: Final = {
    Verdict.WAITS_FOR_APPROVAL.value: "its operator has to approve the run first",
    Verdict.OFFER.value: "its policy refuses the plan as it is",
    CANNOT_SAY: "cannot say (older release)",
    ABSENT: "not heard of lately",
    NO_ANSWER: "no answer in time",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What the silos of a roster said to a plan."""

    verdicts: tuple[admin_pb2.SiloVerdict, ...]
    quorum: int
    """Ready silos that a round opens with."""
    submit_token: str
    """The name of this asking."""
    before: Asked | None = None
    """What they said to the plan as it was, where they were asked about an amended one."""
    amended_plan: bytes = b""
    """The document of that one."""
    moves: tuple[admin_pb2.PlanMove, ...] = ()
    """What it says otherwise."""
    not_amended: tuple[str, ...] = ()
    """Why no plan comes of the silos' offers."""

    def count(self, verdict: str) -> int:
        """How many say so."""
        return sum(one.verdict == verdict for one in self.verdicts)

    def show(self, output: Format) -> None:
        """Print a row for each silo and the sum of them; for both rounds, where there were two."""
        if self.before is not None:
            self.before.show(output)
            for move in self.moves:
                show_result(
                    output, f"amended: {move.key} {move.before or 'not set'} -> {move.after}"
                )
        for one in self.verdicts:
            words = f"{one.rule}: {one.reason}" if one.rule else _IN_WORDS.get(one.verdict, "")
            if one.HasField("offer"):
                words += f"; offers {offer_from_proto(one.offer)}"
            show_result(output, f"{one.silo_id:<24} {one.verdict:<18}  {words}".rstrip())
        show_result(
            output,
            f"{self.count(Verdict.ACCEPT)} of {len(self.verdicts)} silos accept, "
            f"{self.count(Verdict.WAITS_FOR_APPROVAL)} wait for approval; a round opens with "
            f"{self.quorum}",
        )
        for problem in self.not_amended:
            show_result(output, f"not amended: {problem}")

    def figures(self) -> dict[str, Any]:
        """The same for JSON."""
        return {
            "submit_token": self.submit_token,
            "quorum": self.quorum,
            "accepts": self.count(Verdict.ACCEPT),
            "waits_for_approval": self.count(Verdict.WAITS_FOR_APPROVAL),
            "silos": [
                {
                    "silo_id": one.silo_id,
                    "verdict": one.verdict,
                    "rule": one.rule,
                    "reason": one.reason,
                    "offer": (
                        offer_from_proto(one.offer).named() if one.HasField("offer") else None
                    ),
                }
                for one in self.verdicts
            ],
            **self._negotiated(),
        }

    def _negotiated(self) -> dict[str, Any]:
        """What came of offers; nothing where there were none."""
        if self.before is not None:
            return {
                "before": self.before.figures(),
                "moves": [
                    {"key": move.key, "before": move.before or None, "after": move.after}
                    for move in self.moves
                ],
                "amended_sha256": hashlib.sha256(self.amended_plan).hexdigest(),
            }
        return {"not_amended": list(self.not_amended)} if self.not_amended else {}

    def require_quorum(
        self, path: Path, *, await_silos: bool = False, await_approval: bool = False
    ) -> None:
        """Refuse to go on where too few silos accept.

        With ``await_silos`` those that are not there may still come, with ``await_approval`` those
        whose operator has to approve may still do it.

        Raises:
            CommandError: It names who does not accept, and why.
        """
        accepts = self.count(Verdict.ACCEPT)
        waiting = self.count(Verdict.WAITS_FOR_APPROVAL)
        to_come = self.count(ABSENT) * await_silos + waiting * await_approval
        if accepts + to_come >= self.quorum:
            return
        others = "; ".join(
            f"{one.silo_id}: " + (f"{one.reason} (rule {one.rule})" if one.rule else words)
            for one in self.verdicts
            if (words := _IN_WORDS.get(one.verdict, one.verdict)) and one.verdict != Verdict.ACCEPT
        )
        raise CommandError(
            f"a round opens with {self.quorum} ready silos, and {accepts} of "
            f"{len(self.verdicts)} accept this plan: {others}",
            code="preflight_refused",
            exit_code=Exit.ARGUMENTS,
            hint=(
                f"{waiting} wait for an operator, who can approve a run once it is started: "
                "chorale run start --await-approval counts on them"
                if waiting
                else ""
            ),
            next_step=f"change {path} or agree with these sites, and ask again under a new token",
            data=self.figures(),
        )


def ask_silos(
    stub: Any,
    *,
    plan_toml: bytes,
    submit_token: str,
    federation: str = "",
    negotiate: bool = False,
) -> Asked:
    """Ask the silos of the roster in force, and say how many have answered meanwhile.

    An empty token stands for a new one. With ``negotiate`` they are asked once more, about the plan
    that their offers make of it, if they make one.

    Raises:
        grpc.RpcError: The coordinator refuses, or is away.
    """
    token = submit_token or secrets.token_hex(16)
    request = admin_pb2.AskSilosRequest(
        plan=plan_toml, submit_token=token, federation=federation, negotiate=negotiate
    )
    timeout_s = (CALL_TIMEOUT_S + _TURNS * ANSWER_WITHIN_S) * (2 if negotiate else 1)
    before: Asked | None = None
    status = admin_pb2.AskSilosResponse()
    for status in stub.AskSilos(request, timeout=timeout_s):
        left = sum(not one.verdict for one in status.verdicts)
        if left:
            again = " about the amended plan" if status.amended_plan else ""
            known = len(status.verdicts) - left
            say(f"asking the silos{again}: {known} of {len(status.verdicts)} known")
        elif not status.amended_plan:
            before = _asked(status, token)
    if not status.amended_plan:
        return _asked(status, token)
    _require_made_of(plan_toml, before, status.amended_plan)
    return _asked(status, token, before=before)


def _require_made_of(plan_toml: bytes, before: Asked | None, amended_plan: bytes) -> None:
    verdicts = () if before is None else before.verdicts
    offers = {one.silo_id: offer_from_proto(one.offer) for one in verdicts if one.HasField("offer")}
    found = amend(plan_toml, offers, now_unix_s=int(time.time()))
    if not isinstance(found, Amended) or found.plan_toml != amended_plan:
        why = "; ".join(found.problems) if isinstance(found, NotAmended) else "other bytes"
        raise CommandError(
            f"the coordinator's amended plan is not what the shown offers make of this one ({why})",
            code="amended_otherwise",
            exit_code=Exit.SERVER,
            next_step="compare this machine's clock and version with the coordinator's",
        )


def _asked(status: admin_pb2.AskSilosResponse, token: str, *, before: Asked | None = None) -> Asked:
    return Asked(
        verdicts=tuple(status.verdicts),
        quorum=status.quorum,
        submit_token=token,
        before=before,
        amended_plan=status.amended_plan,
        moves=tuple(status.moves),
        not_amended=tuple(status.not_amended),
    )
