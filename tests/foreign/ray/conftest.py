"""This suite needs Ray, in an environment of its own (`run.sh`); other runs leave it out."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("ray") else ["test_*.py"]
