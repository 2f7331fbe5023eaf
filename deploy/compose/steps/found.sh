#!/bin/sh
# Founds the coordinator, once, with the root's public key.
set -eu
if [ ! -e "$CHORALE_DATA/coordinator.toml" ]; then
  chorale init --host coordinator --root-certificate /exchange/root.pub --data "$CHORALE_DATA"
fi
