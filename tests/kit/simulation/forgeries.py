"""How a lying coordinator alters what it relays."""

from dataclasses import replace
from typing import Any

from secagg import suite
from secagg.messages import BoxDelivery, Survivors
from tests.kit.secagg.secagg_samples import signing_key
from tests.kit.simulation.session_federation import Attempt


def headers_of(message: Any, name: str) -> Any:
    return next(h for h in message.headers if getattr(h, "sender", None) == name)


def with_header(message: BoxDelivery, header: Any) -> BoxDelivery:
    headers = tuple(header if h.sender == header.sender else h for h in message.headers)
    return replace(message, headers=headers)


def resigned_boxes(attempt: Attempt, header: Any, **changes: Any) -> Any:
    """An R1 header altered and signed by its own silo, which colludes."""
    altered = replace(header, **changes)
    signed_bytes = altered.signed_bytes(attempt.ctx)
    return replace(altered, signature=suite.sign(signing_key(altered.sender), signed_bytes))


def of(message: Survivors, name: str) -> Any:
    return next(h for h in message.headers if h.silo_id == name)


def swapped(message: Survivors, new: Any) -> Survivors:
    headers = tuple(new if h.silo_id == new.silo_id else h for h in message.headers)
    return replace(message, headers=headers)


def without(message: Any, *names: str) -> Any:
    """The same message as if these silos had not answered."""
    (attribute,) = [a for a in ("bundles", "headers", "signatures") if hasattr(message, a)]
    kept = tuple(
        item
        for item in getattr(message, attribute)
        if getattr(item, "silo_id", None) not in names
        and getattr(item, "sender", None) not in names
    )
    rest = {}
    if isinstance(message, BoxDelivery):
        boxes = {k: v for k, v in message.ciphertexts.items() if k not in names}
        rest["ciphertexts"] = boxes
    return replace(message, **{attribute: kept}, **rest)
