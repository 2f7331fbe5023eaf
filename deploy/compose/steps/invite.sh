#!/bin/sh
# invite.sh SILO: writes one invite for one silo, once, to where only that silo reads it.
set -eu
if [ ! -e /exchange/invite ]; then
  # The answer is a command line with the invite between quotes.
  line=$(chorale invite oncology "$1" --ttl 24h)
  printf '%s\n' "$line" | cut -d "'" -f 2 >/exchange/invite.new
  mv /exchange/invite.new /exchange/invite
fi
