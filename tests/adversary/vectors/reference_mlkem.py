"""ML-KEM-768 (FIPS 203, August 2024) written from the standard, to check what suite v2 calls.

Algorithm numbers are the standard's. Slow, not constant in time, and never used outside tests.
Polynomials are lists of 256 integers modulo q; a vector is a list of K of them.
"""

import hashlib
import hmac

Q = 3329
N = 256
K = 3
ETA = 2
DU, DV = 10, 4
EK_BYTES, DK_BYTES, CIPHERTEXT_BYTES = 384 * K + 32, 768 * K + 96, 32 * (DU * K + DV)


def _reversed7(value):
    return int(f"{value:07b}"[::-1], 2)


# ζ = 17 is a primitive 256th root of unity modulo q (§4.3, appendix A).
_ZETAS = [pow(17, _reversed7(i), Q) for i in range(128)]
_GAMMAS = [pow(17, 2 * _reversed7(i) + 1, Q) for i in range(128)]


def keygen(d, z):
    """Algorithm 16: (encapsulation key, decapsulation key) of two 32-byte seeds."""
    ek, secret = _pke_keygen(d)
    return ek, secret + ek + _h(ek) + z


def encaps(ek, m):
    """Algorithm 17: (shared secret, ciphertext) of 32 bytes of randomness.

    A ValueError for a key that fails the check of §7.2.
    """
    if not is_encapsulation_key(ek):
        raise ValueError("not an ML-KEM-768 encapsulation key")
    shared, randomness = _g(m + _h(ek))
    return shared, _pke_encrypt(ek, m, randomness)


def decaps(dk, ciphertext):
    """Algorithm 18: the shared secret, or the one of an implicit rejection."""
    if len(dk) != DK_BYTES or len(ciphertext) != CIPHERTEXT_BYTES:
        raise ValueError("sizes of ML-KEM-768")
    secret, ek = dk[: 384 * K], dk[384 * K : 768 * K + 32]
    h, z = dk[768 * K + 32 : 768 * K + 64], dk[768 * K + 64 :]
    if not hmac.compare_digest(h, _h(ek)):
        raise ValueError("the hash in the decapsulation key is not its encapsulation key's")
    m = _pke_decrypt(secret, ciphertext)
    shared, randomness = _g(m + h)
    if _pke_encrypt(ek, m, randomness) != ciphertext:
        return hashlib.shake_256(z + ciphertext).digest(32)
    return shared


def is_encapsulation_key(ek):
    """§7.2: the length, and every coefficient below q."""
    if len(ek) != EK_BYTES:
        return False
    return all(
        _encode(12, _decode(12, ek[384 * i : 384 * (i + 1)])) == ek[384 * i : 384 * (i + 1)]
        for i in range(K)
    )


# K-PKE (§5) ---------------------------------------------------------------------------------------


def _pke_keygen(d):
    """Algorithm 13."""
    rho, sigma = _g(d + bytes([K]))
    matrix = _matrix(rho)
    s = [_ntt(_sample_cbd(_prf(sigma, i))) for i in range(K)]
    e = [_ntt(_sample_cbd(_prf(sigma, K + i))) for i in range(K)]
    t = [_added(_dot(matrix[i], s), e[i]) for i in range(K)]
    return b"".join(_encode(12, p) for p in t) + rho, b"".join(_encode(12, p) for p in s)


def _pke_encrypt(ek, m, randomness):
    """Algorithm 14."""
    t = [_decode(12, ek[384 * i : 384 * (i + 1)]) for i in range(K)]
    matrix = _matrix(ek[384 * K :])
    y = [_ntt(_sample_cbd(_prf(randomness, i))) for i in range(K)]
    e1 = [_sample_cbd(_prf(randomness, K + i)) for i in range(K)]
    e2 = _sample_cbd(_prf(randomness, 2 * K))
    u = [_added(_inverse_ntt(_dot([matrix[j][i] for j in range(K)], y)), e1[i]) for i in range(K)]
    message = [_decompress(1, bit) for bit in _decode(1, m)]
    v = _added(_added(_inverse_ntt(_dot(t, y)), e2), message)
    return b"".join(_encode(DU, [_compress(DU, x) for x in p]) for p in u) + _encode(
        DV, [_compress(DV, x) for x in v]
    )


def _pke_decrypt(secret, ciphertext):
    """Algorithm 15."""
    size = 32 * DU
    u = [
        [_decompress(DU, x) for x in _decode(DU, ciphertext[size * i : size * (i + 1)])]
        for i in range(K)
    ]
    v = [_decompress(DV, x) for x in _decode(DV, ciphertext[size * K :])]
    s = [_decode(12, secret[384 * i : 384 * (i + 1)]) for i in range(K)]
    product = _inverse_ntt(_dot(s, [_ntt(p) for p in u]))
    return _encode(1, [_compress(1, (a - b) % Q) for a, b in zip(v, product, strict=True)])


def _matrix(rho):
    return [[_sample_ntt(rho + bytes([j, i])) for j in range(K)] for i in range(K)]


# Functions and sampling (§4.1, §4.2) --------------------------------------------------------------


def _h(content):
    return hashlib.sha3_256(content).digest()


def _g(content):
    digest = hashlib.sha3_512(content).digest()
    return digest[:32], digest[32:]


def _prf(seed, number):
    return hashlib.shake_256(seed + bytes([number])).digest(64 * ETA)


def _compress(d, x):
    # ⌈(2^d / q)·x⌋, rounding half up.
    return ((x << (d + 1)) + Q) // (2 * Q) % (1 << d)


def _decompress(d, y):
    return (y * 2 * Q + (1 << d)) >> (d + 1)


def _encode(d, values):
    """Algorithm 5, little-endian bits."""
    number = sum(value << (d * i) for i, value in enumerate(values))
    return number.to_bytes(32 * d, "little")


def _decode(d, content):
    """Algorithm 6; twelve bits are reduced modulo q."""
    number = int.from_bytes(content, "little")
    modulus = Q if d == 12 else 1 << d
    return [(number >> (d * i) & ((1 << d) - 1)) % modulus for i in range(N)]


def _sample_ntt(seed):
    """Algorithm 7: uniform coefficients of a polynomial in the NTT domain."""
    found, size = [], 3 * 280
    while len(found) < N:
        stream = hashlib.shake_128(seed).digest(size)
        found = []
        for i in range(0, size, 3):
            a, b, c = stream[i : i + 3]
            found += [x for x in (a + 256 * (b % 16), b // 16 + 16 * c) if x < Q]
        size *= 2
    return found[:N]


def _sample_cbd(content):
    """Algorithm 8 with η = 2: each coefficient from four bits."""
    number = int.from_bytes(content, "little")
    bits = [number >> i & 1 for i in range(4 * N)]
    return [
        (bits[4 * i] + bits[4 * i + 1] - bits[4 * i + 2] - bits[4 * i + 3]) % Q for i in range(N)
    ]


# The number-theoretic transform (§4.3) ------------------------------------------------------------


def _ntt(polynomial):
    """Algorithm 9."""
    f, i, length = list(polynomial), 1, 128
    while length >= 2:
        for start in range(0, N, 2 * length):
            zeta = _ZETAS[i]
            i += 1
            for j in range(start, start + length):
                t = zeta * f[j + length] % Q
                f[j + length] = (f[j] - t) % Q
                f[j] = (f[j] + t) % Q
        length //= 2
    return f


def _inverse_ntt(polynomial):
    """Algorithm 10."""
    f, i, length = list(polynomial), 127, 2
    while length <= 128:
        for start in range(0, N, 2 * length):
            zeta = _ZETAS[i]
            i -= 1
            for j in range(start, start + length):
                t = f[j]
                f[j] = (t + f[j + length]) % Q
                f[j + length] = zeta * (f[j + length] - t) % Q
        length *= 2
    return [x * 3303 % Q for x in f]


def _multiplied(f, g):
    """Algorithms 11 and 12."""
    h = []
    for i, gamma in enumerate(_GAMMAS):
        a0, a1, b0, b1 = f[2 * i], f[2 * i + 1], g[2 * i], g[2 * i + 1]
        h += [(a0 * b0 + a1 * b1 * gamma) % Q, (a0 * b1 + a1 * b0) % Q]
    return h


def _dot(left, right):
    total = [0] * N
    for f, g in zip(left, right, strict=True):
        total = _added(total, _multiplied(f, g))
    return total


def _added(f, g):
    return [(a + b) % Q for a, b in zip(f, g, strict=True)]
