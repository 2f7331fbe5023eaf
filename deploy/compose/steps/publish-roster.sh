#!/bin/sh
# Publishes the signed roster, unless one is in force.
set -eu
if [ ! -e /exchange/in-force.json ]; then
  chorale roster publish /exchange/roster.signed.json
fi
