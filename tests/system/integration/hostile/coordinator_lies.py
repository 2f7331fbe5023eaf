"""What a lying coordinator says to four silos: one class for each lie.

A lie works on what a silo is told (`tell`, `records`, `roster`), puts in messages of its own
(`instead`), or keeps what a silo sends from the honest part of the coordinator (`swallows`). It
signs what the coordinator may sign, and knows no other key.
"""

from collections import defaultdict
from dataclasses import replace
from typing import Any

import federation.wire as federation_wire
from chorale.v1 import round_pb2 as pb
from secagg import wire
from secagg.descriptor import sign_descriptor
from secagg.roster import sign_roster
from tests.kit.federation.records import resummed

FIRST_ATTEMPT = 1
SILOS = ("silo-a", "silo-b", "silo-c", "silo-d")


class Scene:
    """One aggregation in which the coordinator lies."""

    def __init__(self, service: Any, identity: Any) -> None:
        self.service = service
        self.identity = identity
        # Call to silo to the request as it came.
        self.heard: dict[str, dict[str, Any]] = defaultdict(dict)
        # Kind of message to what an honest coordinator told, by silo.
        self.told: dict[str, dict[str, Any]] = defaultdict(dict)
        self.given: set[tuple[str, str]] = set()
        self.forged: Any = None

    def resigned(self, proto: Any, **changes: Any) -> Any:
        """A descriptor with other fields, properly signed by the coordinator."""
        descriptor = replace(wire.descriptor_from_proto(proto).descriptor, **changes)
        return wire.descriptor_to_proto(
            sign_descriptor(descriptor, self.service._context.signing_key)
        )

    def once(self, silo: str, tag: str, **message: Any) -> pb.PollResponse | None:
        """An instruction of the liar's own, given to each silo once."""
        if (silo, tag) in self.given:
            return None
        self.given.add((silo, tag))
        response = pb.PollResponse(instruction_id=f"lie:{self.identity.round}:{tag}", **message)
        response.identity.CopyFrom(wire.identity_to_proto(self.identity))
        return response


class Lie:
    """An honest coordinator."""

    def tell(self, scene: Scene, silo: str, response: Any) -> Any:
        """What the silo is told in place of this; None keeps it waiting."""
        del self, scene, silo
        return response

    def instead(self, scene: Scene, silo: str) -> Any:
        """A message nobody asked for, or None."""
        del self, scene, silo

    def swallows(self, call: str, silo: str) -> bool:
        """Whether the honest part never hears of this call."""
        del self, call, silo
        return False

    def records(self, scene: Scene, silo: str, records: list[Any]) -> list[Any]:
        """The chain as this silo is shown it."""
        del self, scene, silo
        return records

    def roster(self, scene: Scene, silo: str, roster: Any) -> Any:
        """The roster as this silo is shown it."""
        del self, scene, silo
        return roster


class SubstitutedKey(Lie):
    """Attack 2: silo-a is shown another mask key for silo-b."""

    def tell(self, scene: Scene, silo: str, response: Any) -> Any:
        if silo == "silo-a" and response.HasField("key_bundles"):
            for bundle in response.key_bundles.bundles:
                if bundle.silo_id == "silo-b":
                    bundle.mask_key = bytes([7]) * 32
        return response


class AnotherModel(Lie):
    """Attack 5: two silos are to start from another adapter than the chain's."""

    def tell(self, scene: Scene, silo: str, response: Any) -> Any:
        if silo in SILOS[:2] and response.HasField("descriptor"):
            forged = scene.resigned(response.descriptor, adapter_sha256=bytes([5]) * 32)
            response.descriptor.CopyFrom(forged)
        return response


class ForkedDescriptor(Lie):
    """Attack 5: each half has a descriptor that it accepts; all bundles are shown to everybody."""

    def tell(self, scene: Scene, silo: str, response: Any) -> Any:
        if silo in SILOS[:2] and response.HasField("descriptor"):
            later = [at + 1 for at in response.descriptor.deadlines_unix_s]
            forged = scene.resigned(response.descriptor, deadlines_unix_s=tuple(later))
            response.descriptor.CopyFrom(forged)
        return response

    def swallows(self, call: str, silo: str) -> bool:
        return call == "AdvertiseKeys"

    def instead(self, scene: Scene, silo: str) -> Any:
        sent = scene.heard["AdvertiseKeys"]
        if len(sent) < len(SILOS):
            return None
        response = pb.PollResponse()
        response.key_bundles.bundles.extend(sent[name].bundle for name in SILOS)
        return scene.once(silo, "bundles", key_bundles=response.key_bundles)


class LoweredThreshold(Lie):
    """Attack 14: t = 2 for everybody, properly signed."""

    def tell(self, scene: Scene, silo: str, response: Any) -> Any:
        if response.HasField("descriptor"):
            response.descriptor.CopyFrom(scene.resigned(response.descriptor, threshold=2))
        return response


class LoweredSigma(Lie):
    """Attack 14: half the noise that the plan needs, for everybody."""

    def tell(self, scene: Scene, silo: str, response: Any) -> Any:
        if response.HasField("descriptor"):
            sigma = response.descriptor.noise_sigma / 2
            response.descriptor.CopyFrom(scene.resigned(response.descriptor, noise_sigma=sigma))
        return response


def without(survivors: Any, silo: str) -> Any:
    """The same survivors as if one had not uploaded."""
    smaller = type(survivors)()
    smaller.headers.extend(header for header in survivors.headers if header.silo_id != silo)
    return smaller


class ForkedSurvivors(Lie):
    """Attack 4: one half is told that silo-a is alive, the other that it is lost."""

    def tell(self, scene: Scene, silo: str, response: Any) -> Any:
        if silo in SILOS[2:] and response.HasField("survivors"):
            response.survivors.CopyFrom(without(response.survivors, "silo-a"))
        return response

    def swallows(self, call: str, silo: str) -> bool:
        return call == "CheckConsistency"

    def instead(self, scene: Scene, silo: str) -> Any:
        sent = scene.heard["CheckConsistency"]
        if len(sent) < len(SILOS):
            return None
        response = pb.PollResponse()
        for name in SILOS if silo in SILOS[:2] else SILOS[1:]:
            response.consistency_signatures.signatures.append(sent[name].signature)
        return scene.once(
            silo, "agreements", consistency_signatures=response.consistency_signatures
        )


class BothSecrets(Lie):
    """Attack 1: after silo-d was agreed to be alive, its mask key is asked for as well.

    silo-a is asked before it released anything, silo-b and silo-c after they released shares of b.
    The attempt stays open until its deadline, because silo-a's shares never come.
    """

    def tell(self, scene: Scene, silo: str, response: Any) -> Any:
        if response.HasField("survivors"):
            scene.told["survivors"][silo] = response.survivors
        if silo == "silo-a" and response.HasField("consistency_signatures"):
            response.survivors.CopyFrom(without(scene.told["survivors"][silo], "silo-d"))
        return response

    def instead(self, scene: Scene, silo: str) -> Any:
        if silo not in scene.heard["Unmask"] or silo not in SILOS[1:3]:
            return None
        asked = without(scene.told["survivors"][silo], "silo-d")
        return scene.once(silo, "second survivors", survivors=asked)


class LateUpload(Lie):
    """Attack 12: silo-d uploads, is declared lost, and is shown the survivors without it."""

    def tell(self, scene: Scene, silo: str, response: Any) -> Any:
        if response.HasField("survivors"):
            scene.told["survivors"][silo] = response.survivors
        if silo == "silo-d" and response.HasField("aborted"):
            if not scene.told["survivors"]:
                return None
            response.survivors.CopyFrom(next(iter(scene.told["survivors"].values())))
        return response

    def swallows(self, call: str, silo: str) -> bool:
        return call == "UploadMaskedInput" and silo == "silo-d"


class AlteredUploads(Lie):
    """Attack 12: silo-a's own upload is shown truncated, to silo-b another digest of silo-d's."""

    def tell(self, scene: Scene, silo: str, response: Any) -> Any:
        if response.HasField("survivors"):
            for header in response.survivors.headers:
                if silo == header.silo_id == "silo-a":
                    header.length_bytes -= 4
                if silo == "silo-b" and header.silo_id == "silo-d":
                    header.masked_sha256 = bytes(32)
        return response


class HiddenAttempt(Lie):
    """Attacks 1 and 10: the attempt is finished, never published, and declared again without one.

    All shares come in; then silo-a, silo-b and silo-c are to take part in another attempt.
    """

    def tell(self, scene: Scene, silo: str, response: Any) -> Any:
        if response.HasField("descriptor"):
            scene.told["descriptor"][silo] = response.descriptor
        return response

    def swallows(self, call: str, silo: str) -> bool:
        return call in ("CheckConsistency", "Unmask")

    def instead(self, scene: Scene, silo: str) -> Any:
        agreed, released = scene.heard["CheckConsistency"], scene.heard["Unmask"]
        if len(agreed) == len(SILOS) and (silo, "agreements") not in scene.given:
            response = pb.PollResponse()
            response.consistency_signatures.signatures.extend(
                agreed[name].signature for name in SILOS
            )
            return scene.once(
                silo, "agreements", consistency_signatures=response.consistency_signatures
            )
        if len(released) < len(SILOS) or silo == "silo-d":
            return None
        forged = scene.resigned(
            scene.told["descriptor"][silo],
            identity=replace(scene.identity, attempt=FIRST_ATTEMPT + 1),
            cohort=SILOS[:3],
        )
        return scene.once(silo, "another attempt", descriptor=forged)


class WrongUpdate(Lie):
    """Attack 5: silo-a is shown an adapter that does not follow from the published sum."""

    def records(self, scene: Scene, silo: str, records: list[Any]) -> list[Any]:
        if silo == "silo-a":
            first, last = records[0], records[-1]
            forged = replace(last, adapter_sha256=first.adapter_sha256)
            records[-1] = forged.sign(scene.service._context.signing_key)
        return records


class ForkedChain(Lie):
    """Attack 5: silo-a is shown another history than the one it adopted, in links that fit."""

    def records(self, scene: Scene, silo: str, records: list[Any]) -> list[Any]:
        if silo == "silo-a":
            key = scene.service._context.signing_key
            records[-2] = resummed(records[-2], descriptor_sha256=bytes(32)).sign(key)
            records[-1] = replace(records[-1], record_parent_sha256=records[-2].sha256).sign(key)
        return records


class OwnRoster(Lie):
    """Attacks 2 and 7: silo-a is asked once to believe a roster that the coordinator signed."""

    def tell(self, scene: Scene, silo: str, response: Any) -> Any:
        key = scene.service._context.signing_key
        if silo != "silo-a" or not response.HasField("round_task"):
            return response
        if (silo, "roster") in scene.given:
            return response
        honest = scene.service._context.store.rosters.current().roster
        scene.forged = sign_roster(replace(honest, epoch=honest.epoch + 1), key)
        task = federation_wire.round_task_from_proto(response.round_task)
        lie = replace(task, roster_sha256=scene.forged.roster.sha256, signature=b"").sign(key)
        response.round_task.CopyFrom(federation_wire.round_task_to_proto(lie))
        return response

    def roster(self, scene: Scene, silo: str, roster: Any) -> Any:
        if scene.forged is None or silo != "silo-a" or (silo, "roster") in scene.given:
            return roster
        scene.given.add((silo, "roster"))
        return wire.roster_to_proto(scene.forged)


LIES: dict[str, Lie] = {
    "keys": SubstitutedKey(),
    "model": AnotherModel(),
    "descriptors": ForkedDescriptor(),
    "threshold": LoweredThreshold(),
    "sigma": LoweredSigma(),
    "survivors": ForkedSurvivors(),
    "both": BothSecrets(),
    "late": LateUpload(),
    "uploads": AlteredUploads(),
    "hidden": HiddenAttempt(),
    "update": WrongUpdate(),
    "fork": ForkedChain(),
    "roster": OwnRoster(),
}
