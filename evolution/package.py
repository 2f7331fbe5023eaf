r"""The digest of an installed package, which a site states for parts that run at record level.

    H("chorale/package/v1\0" ‖ for each file in order of its path: path, length, content)

over the files that the distribution lists and that Python reads as code or data: its metadata
directory and compiled caches are left out. Strings and lengths are length-prefixed.

Covered: distributions that were installed from a wheel. Not covered: one that was installed in
editable form, which lists no files of its own, and what it imports from others.
"""

from __future__ import annotations

import hashlib
from importlib.metadata import PackageNotFoundError, distribution
from typing import Final

from evolution.errors import EvolverSetupError

__all__ = ["package_sha256"]

_MAX_BYTES: Final = 64 << 20


def package_sha256(name: str) -> str:
    """The digest of a distribution's files, 64 hexadecimal digits.

    Raises:
        EvolverSetupError: It is not installed, lists no files, or they cannot be read.
    """
    try:
        files = distribution(name).files or []
    except PackageNotFoundError as error:
        raise EvolverSetupError(f"package {name} is not installed") from error
    own = sorted(
        (file.as_posix(), file)
        for file in files
        if ".dist-info" not in file.parts[0]
        and "__pycache__" not in file.parts
        and not file.name.endswith(".pth")
        and ".." not in file.parts
    )
    if not own:
        raise EvolverSetupError(
            f"package {name} lists no files, of which its digest is made: install it from a wheel"
        )
    digest = hashlib.sha256(b"chorale/package/v1\0")
    read = 0
    try:
        for path, file in own:
            content = file.read_binary()
            read += len(content)
            if read > _MAX_BYTES:
                raise EvolverSetupError(f"package {name} has more than {_MAX_BYTES >> 20} MiB")
            for part in (path.encode(), content):
                digest.update(len(part).to_bytes(8, "little"))
                digest.update(part)
    except OSError as error:
        raise EvolverSetupError(f"package {name} cannot be read: {error}") from error
    return digest.hexdigest()
