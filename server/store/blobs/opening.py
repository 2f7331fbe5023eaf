"""Which blob storage is in force: what a configuration names, opened.

Covered: a directory, S3-compatible storage where its package is installed. Not covered: what they
promise (``server/store/blobs/storage.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from server.errors import ConfigurationError
from server.store.blobs.directory import BlobStore

if TYPE_CHECKING:
    from server.config import CoordinatorConfig
    from server.store.blobs.storage import BlobStorage

__all__ = ["open_blobs"]


def open_blobs(config: CoordinatorConfig) -> BlobStorage:
    """Open the storage that a configuration names; nothing is fetched.

    Raises:
        ConfigurationError: The URL, the endpoint or the credentials cannot be used.
    """
    if config.adapters_url is None:
        return BlobStore(config.adapters)
    try:
        from server.store.blobs.objects import ObjectBlobs
    except ImportError as error:
        raise ConfigurationError(
            "adapters_url needs one more package: pip install 'chorale[s3]'"
        ) from error
    return ObjectBlobs(config.adapters_url, cache=config.paths.adapters_cache)
