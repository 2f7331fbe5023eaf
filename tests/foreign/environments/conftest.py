"""This suite needs a virtual environment of its own (`run.sh`); other runs leave it out."""

from importlib.util import find_spec

_NEEDED = ("openenv", "reasoning_gym", "textworld")
collect_ignore_glob = [] if all(map(find_spec, _NEEDED)) else ["test_*.py"]
