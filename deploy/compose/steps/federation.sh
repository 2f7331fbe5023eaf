#!/bin/sh
# Creates the federation, once. Later steps use the admin's certificate, which is good for a day:
# this renews it whenever the federation is started.
set -eu
chorale admin renew
if ! chorale federation show 2>/dev/null; then
  chorale federation create oncology --min-silos 3 --colluding 1 --epsilon-cap 8 --delta 1e-5
fi
