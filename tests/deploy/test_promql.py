"""What our reading adds to the parser's: Grafana's variables, one metric for each selector."""

import pytest

from deploy.promql import Matcher, PromqlError, Selector, label_names, metric_names, selectors


@pytest.mark.parametrize(
    ("expr", "metrics", "labels"),
    [
        ("sum by (silo, job) (a) / on (job) group_left (x) b", {"a", "b"}, {"silo", "job", "x"}),
        ("a and ignoring (x) b or on () c unless d", {"a", "b", "c", "d"}, {"x"}),
        ('{__name__="a", x=~`b.*`}', {"a"}, {"x"}),
        ('rate(a{x=~"$silo"}[$__rate_interval])', {"a"}, {"x"}),
        ("rate(a[${window}]) + rate(b[[[window]]])", {"a", "b"}, set()),
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


@pytest.mark.parametrize("expr", ["", "a ? b", '{x="1"}', '{__name__=~"a.*"}', 'a{__name__="b"}'])
def test_what_names_no_one_metric_is_refused(expr):
    with pytest.raises(PromqlError):
        metric_names(expr)
