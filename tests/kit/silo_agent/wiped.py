"""A session that is over holds no secret."""


def require_wiped(session):
    assert session._state.aborted is not None
    assert repr(session._state._vault) == "Vault(0 secrets)"
