"""This suite needs a virtual environment of its own (`run.sh`); other runs leave it out."""

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

collect_ignore_glob = [] if find_spec("openenv") and find_spec("textworld") else ["test_*.py"]
