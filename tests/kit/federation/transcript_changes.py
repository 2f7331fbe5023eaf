"""A transcript with one leaf changed, and the leaves there are."""


def leaves(message, path=()):
    """Paths of all scalar fields of a message."""
    for descriptor in message.DESCRIPTOR.fields:
        value = getattr(message, descriptor.name)
        repeated = not isinstance(value, str | bytes | int | float) and hasattr(value, "__len__")
        items = enumerate(value) if repeated else [(None, value)]
        for index, item in items:
            step = (*path, (descriptor.name, index))
            if hasattr(item, "DESCRIPTOR"):
                yield from leaves(item, step)
            else:
                yield step


def changed(value):
    if isinstance(value, bytes):
        # Not the first byte: half of a signature's or a key's bits would be enough.
        return value[:5] + bytes([value[5] ^ 1]) + value[6:] if value else b"\x01" * 32
    if isinstance(value, str):
        return value + "x"
    return value + 1
