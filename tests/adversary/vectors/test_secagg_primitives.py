"""Published vectors for every primitive of suite v1. Provenance: README.md beside this file."""

import hashlib
import hmac

import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from secagg import suite
from secagg.errors import ParameterError
from secagg.prg import add_keystream


def _hex(text: str) -> bytes:
    return bytes.fromhex(text)


@pytest.mark.parametrize(
    ("scalar", "u", "expected"),
    [
        (
            "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
            "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
            "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
        ),
        (
            "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
            "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
            "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
        ),
    ],
)
def test_x25519_rfc7748_5_2(scalar, u, expected):
    assert suite.agree(_hex(scalar), _hex(u)).hex() == expected


def test_x25519_rfc7748_5_2_iterated():
    k = u = (9).to_bytes(32, "little")
    for count in range(1000):
        k, u = suite.agree(k, u), k
        if count == 0:
            assert k.hex() == "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"
    assert k.hex() == "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51"


def test_x25519_rfc7748_6_1():
    alice = _hex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob = _hex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    alice_public = _hex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
    bob_public = _hex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
    shared = _hex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    assert suite.agreement_public_key(alice) == alice_public
    assert suite.agreement_public_key(bob) == bob_public
    assert suite.agree(alice, bob_public) == suite.agree(bob, alice_public) == shared


@pytest.mark.parametrize(
    "point",
    [
        # The points whose order divides eight, in every 32-byte encoding (RFC 7748 §6.1, §7).
        0,
        1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
        2**255 - 20,
        2**255 - 19,
        2**255 - 18,
    ],
)
@pytest.mark.parametrize("top_bit", [0, 1])
def test_low_order_points_are_refused(point, top_bit):
    encoded = (point | top_bit << 255).to_bytes(32, "little")
    assert suite.is_low_order(encoded)
    with pytest.raises(suite.LowOrderError):
        suite.agree(hashlib.sha256(b"scalar").digest(), encoded)


def test_two_encodings_of_one_point_are_recognised():
    public = suite.agreement_public_key(hashlib.sha256(b"scalar").digest())
    copied = bytes([*public[:31], public[31] | 0x80])
    private = hashlib.sha256(b"other").digest()
    assert suite.agree(private, public) == suite.agree(private, copied)
    assert suite.same_point(public) == suite.same_point(copied)
    assert suite.same_point((2**255 - 19 + 9).to_bytes(32, "little")) == bytes([9]) + bytes(31)


@pytest.mark.parametrize(
    ("private", "public", "message", "signature"),
    [
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            (
                "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e"
                "39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
            ),
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            (
                "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f"
                "3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
            ),
        ),
        (
            "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
            "af82",
            (
                "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67"
                "f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
            ),
        ),
        (
            "833fe62409237b9d62ec77587520911e9a759cec1d19755b7da901b96dca3d42",
            "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
            (
                "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba"
                "3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f"
            ),
            (
                "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b58909351fc9ac90b3ecfdfb"
                "c7c66431e0303dca179c138ac17ad9bef1177331a704"
            ),
        ),
    ],
)
def test_ed25519_rfc8032_7_1(private, public, message, signature):
    key = Ed25519PrivateKey.from_private_bytes(_hex(private))
    assert suite.verification_key(key).hex() == public
    assert suite.sign(key, _hex(message)).hex() == signature
    assert suite.verify(_hex(public), _hex(signature), _hex(message))
    flipped = bytes([_hex(signature)[0] ^ 1, *_hex(signature)[1:]])
    assert not suite.verify(_hex(public), flipped, _hex(message))
    assert not suite.verify(_hex(public), _hex(signature), _hex(message) + b"\x00")
    assert not suite.verify(_hex(public)[:31], _hex(signature), _hex(message))


@pytest.mark.parametrize(
    ("secret", "salt", "info", "expected"),
    [
        (
            b"\x0b" * 22,
            bytes(range(0x0D)),
            bytes(range(0xF0, 0xFA)),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
        ),
        (
            bytes(range(0x50)),
            bytes(range(0x60, 0xB0)),
            bytes(range(0xB0, 0x100)),
            (
                "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb"
                "41c65e590e09da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87"
            ),
        ),
        (
            b"\x0b" * 22,
            b"",
            b"",
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
        ),
    ],
)
def test_hkdf_rfc5869(secret, salt, info, expected):
    length = len(expected) // 2
    derived = HKDF(algorithm=hashes.SHA256(), length=length, salt=salt, info=info).derive(secret)
    assert derived.hex() == expected


def test_derivation_is_hkdf_with_the_specified_info():
    ctx = hashlib.sha256(b"ctx").digest()
    info = b"chorale/v1/mask" + ctx + b"\x00\x01a\x00\x02bc"
    # RFC 5869 with no salt and one block, written out.
    extracted = hmac.digest(bytes(32), b"secret", "sha256")
    expected = hmac.digest(extracted, info + b"\x01", "sha256")
    assert suite.derive_key(b"secret", "mask", ctx, "a", "bc") == expected
    others = [
        suite.derive_key(b"secret", "box", ctx, "a", "bc"),
        suite.derive_key(b"secret", "mask", ctx, "ab", "c"),
        suite.derive_key(b"secret", "mask", bytes(32), "a", "bc"),
        suite.derive_key(b"Secret", "mask", ctx, "a", "bc"),
    ]
    assert len({expected, *others}) == 5
    for purpose, context in (("other", ctx), ("mask", ctx[:31])):
        with pytest.raises(ParameterError):
            suite.derive_key(b"secret", purpose, context)


def test_no_purpose_is_a_prefix_of_another():
    pairs = [(a, b) for a in suite.PURPOSES for b in suite.PURPOSES if a != b]
    assert not any(b.startswith(a) for a, b in pairs)


def test_chacha20_poly1305_rfc8439_2_8_2():
    key = bytes(range(0x80, 0xA0))
    nonce = _hex("070000004041424344454647")
    associated = _hex("50515253c0c1c2c3c4c5c6c7")
    plaintext = (
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the "
        b"future, sunscreen would be it."
    )
    sealed = _hex(
        "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d63dbea45e8ca9671282fafb69"
        "da92728b1a71de0a9e060b2905d6a5b67ecd3b3692ddbd7f2d778b8c9803aee328091b58fab324e4fad67594"
        "5585808b4831d7bc3ff4def08e4b7a9de576d26586cec64b61161ae10b594f09e26a7e902ecbd0600691"
    )
    assert ChaCha20Poly1305(key).encrypt(nonce, plaintext, associated) == sealed


def test_boxes_open_only_under_their_key_and_associated_data():
    key = bytes(range(32))
    box = suite.seal(key, b"associated", b"shares")
    assert box == ChaCha20Poly1305(key).encrypt(bytes(12), b"shares", b"associated")
    assert suite.unseal(key, b"associated", box) == b"shares"
    assert suite.unseal(key, b"Associated", box) is None
    assert suite.unseal(bytes(32), b"associated", box) is None
    assert suite.unseal(key, b"associated", bytes([box[0] ^ 1, *box[1:]])) is None


def test_aes_256_ctr_sp800_38a_f_5_5():
    key = _hex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    counter = _hex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    plaintext = _hex(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    ciphertext = (
        "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
        "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
    )
    encryptor = Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor()
    assert encryptor.update(plaintext).hex() == ciphertext


def test_the_keystream_is_aes_256_of_a_counter_from_zero():
    key = hashlib.sha256(b"key").digest()
    vector = np.zeros(64, dtype="<u4")
    add_keystream(key, vector, 1)
    blocks = b"".join(counter.to_bytes(16, "big") for counter in range(16))
    # One block at a time: the electronic codebook is the bare block cipher of the definition.
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 - see above
    assert vector.tobytes() == encryptor.update(blocks)
