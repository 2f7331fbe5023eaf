"""Names are found where PromQL reads them, and nowhere else."""

import pytest

from deploy.promql import Matcher, PromqlError, Selector, label_names, metric_names, selectors


@pytest.mark.parametrize(
    ("expr", "metrics", "labels"),
    [
        ("up", {"up"}, set()),
        ("chorale:certificate_left:days < 7", {"chorale:certificate_left:days"}, set()),
        ('rate(a_total{x="by (b)", y!~"c|d"}[5m])', {"a_total"}, {"x", "y"}),
        ("sum by (silo, job) (a) / on (job) group_left (x) b", {"a", "b"}, {"silo", "job", "x"}),
        ("sum(a) without (le)", {"a"}, {"le"}),
        ("a and ignoring (x) b or on () c unless d", {"a", "b", "c", "d"}, {"x"}),
        ("max_over_time(a[1d:5m] offset 1h) > bool 2 ^ 30", {"a"}, set()),
        ("a offset -5m @ end() + 1e3 * 0x1F - NaN + -Inf", {"a"}, set()),
        ('{__name__="a", x=~`b.*`}', {"a"}, {"x"}),
        ("quantile(0.9, sum)", {"sum"}, set()),
        ('rate(a{x=~"$silo"}[$__rate_interval])', {"a"}, {"x"}),
        ("rate(a[${window}]) + rate(b[[[window]]])", {"a", "b"}, set()),
        ("a # + b\n+ c", {"a", "c"}, set()),
        ('a{x="{}[]("}', {"a"}, {"x"}),
        ("time() - vector(1)", set(), set()),
    ],
)
def test_names(expr, metrics, labels):
    assert metric_names(expr) == metrics
    assert label_names(expr) == labels


def test_each_mention_is_a_selector_of_its_own():
    assert selectors('a{x="1", y!~"2|3"} / a') == (
        Selector(
            metric="a",
            matchers=(
                Matcher(label="x", operator="=", value="1"),
                Matcher(label="y", operator="!~", value="2|3"),
            ),
        ),
        Selector(metric="a"),
    )


@pytest.mark.parametrize(
    "expr",
    [
        "", "a{", "a)", "(a", "a}", "a[5m", "a]", 'a{x>"1"}', 'a{x="1" y="2"}', "a{x=1}", 'a{="1"}',
        '{x="1"}', '{__name__=~"a.*"}', 'a{__name__="b"}', "sum by x (a)", "a ? b", "a; b",
        'a{x="1}',
    ],
)  # fmt: skip
def test_what_is_no_promql_is_refused(expr):
    with pytest.raises(PromqlError):
        metric_names(expr)
