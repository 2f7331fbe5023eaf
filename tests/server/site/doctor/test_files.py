"""The doctor beside a coordinator whose files come and go."""

from types import SimpleNamespace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ops.doctor.checkup import Outcome
from ops.files import replace_file
from server.config import DataPaths
from server.pki.keys import public_key_pem
from server.site.doctor import files as doctor_checks_files
from server.site.doctor import state as doctor_checks_state


def test_a_file_that_goes_while_it_is_looked_at_is_no_defect(tmp_path, monkeypatch):
    paths = DataPaths(data_dir=tmp_path)
    root = Ed25519PrivateKey.generate()
    public = public_key_pem(root.public_key().public_bytes_raw())
    replace_file(paths.root_public_key, (public,))
    (tmp_path / "stays").write_bytes(b"x")
    (tmp_path / "goes").write_bytes(b"x" * 100)
    real = doctor_checks_files._files

    def listed(directory):
        for path in real(directory):
            if path.name == "goes":
                path.unlink()
            yield path

    monkeypatch.setattr(doctor_checks_files, "_files", listed)
    verdict = doctor_checks_files.judge_root_key(paths)
    assert verdict.outcome is Outcome.OK
    assert "none of 2 files" in verdict.found
    # And the search is not blind for it.
    (tmp_path / "stays").write_bytes(root.private_bytes_raw())
    assert doctor_checks_files.judge_root_key(paths).outcome is Outcome.FAILED


def test_the_largest_adapter_is_found_among_files_that_go(tmp_path, monkeypatch):
    (tmp_path / "aa").mkdir()
    (tmp_path / "aa" / "adapter").write_bytes(b"x" * 1000)
    walk = [(str(tmp_path), ["aa"], []), (str(tmp_path / "aa"), [], ["gone.partial", "adapter"])]
    monkeypatch.setattr(doctor_checks_state, "os", SimpleNamespace(walk=lambda _: walk))
    assert doctor_checks_state._largest_bytes(tmp_path) == 1000
