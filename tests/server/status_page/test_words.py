"""How the status page writes times and figures."""

import html
import math

from server.status_page.words import (
    ago,
    byte_count,
    clock,
    named,
    number,
    percent,
    short,
    span,
    took,
)
from tests.kit.server import status_page_samples as samples

NOW = samples.NOW


def test_times_are_short_and_in_utc():
    assert [span(s) for s in (-5, 0, 59.9, 60, 3599, 3600, 5400, 90000, 20 * 86400, math.inf)] == [
        "0 s", "0 s", "59 s", "1 min", "59 min 59 s", "1 h", "1 h 30 min", "1 d 1 h", "20 d", "0 s",
    ]  # fmt: skip
    assert [ago(t, NOW) for t in (0, NOW - 1, NOW - 65, NOW + 7200)] == [
        "never", "now", "1 min 5 s ago", "in 2 h",
    ]  # fmt: skip
    assert clock(NOW - 5, NOW) == "07:59:55 UTC"
    assert clock(NOW - 86400, NOW) == "2027-01-14 08:00 UTC"
    assert clock(1e300, NOW).startswith("9999-12-31")
    assert clock(0, NOW) == "—"


def test_figures_never_round_to_something_else():
    assert [percent(r) for r in (0, 0.001, 0.5, 0.9999, 1, 1.2, math.nan, math.inf)] == [
        "0 %", "1 %", "50 %", "99 %", "100 %", "120 %", "—", "∞",
    ]  # fmt: skip
    assert percent(0.99999, digits=1) == "99.9 %"
    assert [took(s) for s in (0.04, 0.26, 9.94, 9.96, 61.7)] == [
        "0.0 s", "0.3 s", "9.9 s", "9 s", "1 min 1 s",
    ]  # fmt: skip
    assert number(-1965.4) == "−1,965"
    assert [number(v) for v in (0.0, -0.5, 3.14159, 12345.6, 2.5e9, math.nan, math.inf)] == [
        "0", "−0.5", "3.14", "12,346", "2.50e+09", "—", "∞",
    ]  # fmt: skip
    assert [short(v) for v in (0, 1, 0.02, 0.001, 5e-5, 2e7)] == [
        "0", "1", "0.02", "0.001", "5e−5", "2e7",
    ]  # fmt: skip
    assert [byte_count(c) for c in (0, 1023, 1536, 5 << 30, 7 << 50)] == [
        "0 B", "1023 B", "1.5 KiB", "5.0 GiB", "7168.0 TiB",
    ]  # fmt: skip
    assert named(list("abc")) == "a, b, c"
    assert named(list("abcdef")) == "a, b, c, d and 2 more"
    assert html.escape(named([])) == ""
