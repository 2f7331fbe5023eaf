"""One-turn drills in plain English, for a pretrained model."""
