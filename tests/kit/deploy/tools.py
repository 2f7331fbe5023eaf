"""Programs of Debian packages that judge what is shipped."""

import os
import shutil

import pytest


def require(tool, package):
    """Skip without a program, which a Debian package has; where CI promised them all, fail."""
    if shutil.which(tool):
        return
    reason = f"{tool} is not installed: apt-get install {package}"
    if os.environ.get("CI_REQUIRES_TOOLS"):
        pytest.fail(reason)
    pytest.skip(reason)
