"""A thousand ways to be wrong, from a seed: bytes, messages, streams.

What is made from the same seed, method and base message is the same. Values are those at the edges
of what a field can hold: nothing, too much, too long, NaN, infinity, another round, another silo.
"""

import math
import random
from dataclasses import dataclass

from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor as Field

from chorale.v1 import admin_pb2, enrolment_pb2, membership_pb2, round_pb2

SERVICES = {
    "RoundService": round_pb2,
    "MembershipService": membership_pb2,
    "AdminService": admin_pb2,
    "EnrolmentService": enrolment_pb2,
}
INTEGERS = (0, 1, 2, 7, 63, 255, 2**16, 2**31 - 1, 2**32 - 1, 2**63, 2**64 - 1)
FLOATS = (0.0, -1.0, math.nan, math.inf, -math.inf, 1e308, 5e-324)
TEXTS = ("", "silo-z", "no-such-run", "\x00", "../../etc/passwd", "é" * 64, "a" * 4096, "%s{}'\"")
"""None of them is the id of a real silo or run."""
LONG = 1 << 20
MAX_DEPTH = 5
FLOAT_KINDS = {Field.TYPE_DOUBLE, Field.TYPE_FLOAT}


@dataclass(frozen=True)
class Method:
    service: str
    name: str
    request: type
    streams_in: bool
    streams_out: bool

    @property
    def path(self):
        return f"/chorale.v1.{self.service}/{self.name}"


def methods(service):
    found = SERVICES[service].DESCRIPTOR.services_by_name[service]
    return [
        Method(
            service=service,
            name=method.name,
            request=message_factory.GetMessageClass(method.input_type),
            streams_in=method.client_streaming,
            streams_out=method.server_streaming,
        )
        for method in found.methods
    ]


class Fuzz:
    def __init__(self, seed):
        self.rng = random.Random(seed)  # noqa: S311 - the same inputs every time

    def noise(self, longest=2048):
        return self.rng.randbytes(self.rng.randrange(1, longest))

    def undecodable(self, kind):
        """Bytes that are no message of a kind."""
        while True:
            content = self.noise()
            try:
                kind.FromString(content)
            except Exception:  # noqa: BLE001 - the parser's own error type is private
                return content

    def scalar(self, field):
        if field.type in FLOAT_KINDS:
            return self.rng.choice(FLOATS)
        if field.type == Field.TYPE_BOOL:
            return self.rng.random() < 0.5
        if field.type == Field.TYPE_STRING:
            return "a" * LONG if self.rng.random() < 0.02 else self.rng.choice(TEXTS)
        if field.type == Field.TYPE_BYTES:
            size = self.rng.choice((0, 1, 16, 31, 32, 33, 64, 1000, LONG))
            return self.rng.randbytes(size if self.rng.random() < 0.1 else min(size, 1000))
        if field.type == Field.TYPE_ENUM:
            return self.rng.choice([value.number for value in field.enum_type.values] + [77])
        widest = 2**32 if field.type in {Field.TYPE_UINT32, Field.TYPE_FIXED32} else 2**64
        if field.type in {Field.TYPE_INT32, Field.TYPE_INT64, Field.TYPE_SINT32}:
            widest = 2**31
        return self.rng.choice([number for number in INTEGERS if number < widest])

    def fill(self, message, depth=0):
        """Every field, or most of them, with a value of its type."""
        for field in message.DESCRIPTOR.fields:
            if self.rng.random() < 0.15:
                continue
            self.set(message, field, depth)
        return message

    def set(self, message, field, depth=0):
        if field.message_type is not None:
            if depth >= MAX_DEPTH or field.message_type.GetOptions().map_entry:
                return
            if is_repeated(field):
                for _ in range(self.rng.choice((0, 1, 2, 5))):
                    self.fill(getattr(message, field.name).add(), depth + 1)
            else:
                inner = getattr(message, field.name)
                inner.SetInParent()
                self.fill(inner, depth + 1)
        elif is_repeated(field):
            getattr(message, field.name).extend(
                self.scalar(field) for _ in range(self.rng.choice((0, 1, 3, 40)))
            )
        else:
            setattr(message, field.name, self.scalar(field))

    def changed(self, message):
        """A copy with one field, anywhere in it, at an edge."""
        copy = type(message)()
        copy.CopyFrom(message)
        place = copy
        while True:
            inner = [
                getattr(place, field.name)
                for field, _ in place.ListFields()
                if field.message_type is not None and not is_repeated(field)
            ]
            if not inner or self.rng.random() < 0.4:
                break
            place = self.rng.choice(inner)
        if place.DESCRIPTOR.fields:
            field = self.rng.choice(place.DESCRIPTOR.fields)
            place.ClearField(field.name)
            if self.rng.random() < 0.85:
                self.set(place, field)
        return copy

    def flipped(self, content):
        """The same bytes with a few bits turned, cut, or doubled."""
        out = bytearray(content)
        if not out:
            return self.noise(16)
        how = self.rng.random()
        if how < 0.2:
            return bytes(out[: self.rng.randrange(len(out))])
        if how < 0.3:
            return bytes(out + out)
        for _ in range(self.rng.choice((1, 1, 3, 16))):
            out[self.rng.randrange(len(out))] ^= 1 << self.rng.randrange(8)
        return bytes(out)

    def request(self, kind, base=None):
        """Serialised: noise, an edge case, or a valid message with something wrong."""
        how = self.rng.random()
        if how < 0.2:
            return self.undecodable(kind)
        if how < 0.5 or base is None:
            return self.fill(kind()).SerializeToString()
        if how < 0.8:
            return self.changed(base).SerializeToString()
        return self.flipped(base.SerializeToString())


def is_repeated(field):
    return field.is_repeated if hasattr(field, "is_repeated") else field.label == 3
