"""What ``deploy/release.sh`` removes before it builds: its own files of the time before."""

import subprocess

from tests.kit.paths import ROOT

RELEASE = ROOT / "deploy" / "release.sh"


def test_only_files_of_an_earlier_release_are_removed(tmp_path):
    ours = (
        "chorale-0.1.0-py3-none-any.whl",
        "chorale-0.1.0.tar.gz",
        "chorale-0.1.0-silo.cdx.json",
        "SHA256SUMS",
    )
    theirs = ("chorale-data/audit.jsonl", "chorale-notes.txt", ".work/tools/installed")
    for name in (*ours, *theirs, ".work/source/old"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    lines = [line for line in RELEASE.read_text().splitlines() if line.startswith("rm ")]
    assert lines
    script = "\n".join(["set -eu", "out=$1", "work=$out/.work", *lines])
    subprocess.run(["sh", "-c", script, "sh", str(tmp_path)], check=True)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == set(theirs)
