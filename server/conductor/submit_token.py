"""The token that makes asking twice the same as asking once.

Covered: its form. Not covered: which request it names, which is for who stores that.
"""

from federation.chain.preflight import SUBMIT_TOKEN
from server.errors import SubmitTokenError

__all__ = ["require_submit_token"]


def require_submit_token(token: str) -> None:
    """Go on only if a token is in its form.

    Raises:
        SubmitTokenError: It is malformed.
    """
    if SUBMIT_TOKEN.fullmatch(token) is None:
        raise SubmitTokenError(
            "a submit token has 1 to 128 letters, digits and . _ : / + = -, and begins with a "
            "letter or digit"
        )
