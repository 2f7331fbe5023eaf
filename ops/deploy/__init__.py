"""The files that deploy commands write: units for systemd, compose, Helm, dashboards, rules."""
