"""Ed25519 keys for which anybody can sign, or in a second encoding."""

# RFC 8032 §5.1: the field, the curve -x² + y² = 1 + dx²y², and the order of its large subgroup.
P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P
L = 2**252 + 27742317777372353535851937790883648493
NEUTRAL = (0, 1)


def x_of(y):
    """An x with that y; None where there is no such point."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    for root in (x, x * pow(2, (P - 1) // 4, P) % P):
        if root * root % P == square:
            return root
    return None


def add(one, other):
    (x1, y1), (x2, y2) = one, other
    product = D * x1 * x2 * y1 * y2 % P
    return (
        (x1 * y2 + x2 * y1) * pow(1 + product, -1, P) % P,
        (y1 * y2 + x1 * x2) * pow(1 - product, -1, P) % P,
    )


def times(scalar, point):
    result = NEUTRAL
    for bit in f"{scalar:b}":
        result = add(result, result)
        if bit == "1":
            result = add(result, point)
    return result


def torsion():
    """The eight points whose order divides eight."""
    for y in range(2, 100):
        x = x_of(y)
        if x is None:
            continue
        found = [NEUTRAL]
        generator = times(L, (x, y))
        while (point := add(found[-1], generator)) != NEUTRAL:
            found.append(point)
        if len(found) == 8:
            return found
    raise AssertionError("no point of order eight")


def encodings(point):
    """Every 32 bytes that a lenient decoder takes for a point (RFC 8032 §5.1.3 without its checks).

    y may be written without reduction, and the sign of an x of zero may be set.
    """
    x, y = point
    for value in (y, y + P):
        for sign in {x & 1, 1} if x == 0 else {x & 1}:
            if value < 2**255:
                yield (value | sign << 255).to_bytes(32, "little")


SMALL = sorted({encoded for point in torsion() for encoded in encodings(point)})
UNREDUCED = sorted(
    (value | sign << 255).to_bytes(32, "little") for value in range(P, 2**255) for sign in (0, 1)
)
