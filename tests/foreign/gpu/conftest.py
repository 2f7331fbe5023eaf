"""This suite needs a GPU that torch sees (`run.sh`); other runs leave it out."""

import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]
