"""A figure with noise is shown alike everywhere: with its error, or as the reason why not."""

import io
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from chorale.v1 import admin_pb2 as pb
from dp.noise.estimate import Estimate
from dp.noise.figures import (
    WIDEST_RATIO_ERROR,
    mean_success,
    newest_of_the_best,
    readable_ratio,
    success_words,
)
from federation.adapter.card import FamilySuccess, render_card
from federation.chain.sums import success_ratios
from lab.demo.page import write_html
from lab.demo.progress import Progress
from lab.demo.scenario import DemoSettings
from secagg.descriptor import EPISODES, SUCCESSES
from server.cli.watch import Panel, status_json
from server.figures import RoundFigures
from server.metrics import CoordinatorMetrics
from tests.kit.federation.cards import CARD
from tests.kit.lab.outcomes import outcome_of
from tests.kit.server import status_page_samples as samples
from tests.kit.server.status_page_reader import Parsed

FIGURES = [
    (1.412, 0.89, "below noise"),
    (0.304, 0.41, "below noise"),
    (math.nan, math.inf, "below noise"),
    (0.543, 0.021, "54.3 ± 2.1 %"),
    (0.02, 0.05, "2.0 ± 5.0 %"),
    (1.03, 0.04, "100.0 ± 4.0 %"),
    (-0.01, 0.02, "0.0 ± 2.0 %"),
    (0.9996, 0.0001, "99.9 ± 0.1 %"),
    (0.25, 0.0, "25.0 %"),
]
NEVER = ("141", "30.4", "103", "-1.0", "1.41", "1.03", "nan", "inf ")


def status(success):
    families = [
        pb.FamilySuccess(family=name, success_ratio=ratio, standard_error=error)
        for name, (ratio, error) in success.items()
    ]
    done = pb.RoundStatus(
        round=1, outcome="aggregated", success=families, cohort=["a"], survivors=["a"],
        agreement=math.nan, agreement_standard_error=math.nan,
    )  # fmt: skip
    return pb.WatchRunResponse(
        run=pb.RunSummary(run_id="clinic-1", state="running", rounds=3, steps=1), finished=[done]
    )


def watched(success, _directory, *, terminal):
    console = Console(
        width=160, file=io.StringIO(), force_terminal=terminal, color_system=None, highlight=False
    )
    with Panel(live=True, console=console) as panel:
        panel.show(status(success))
    return console.file.getvalue()


def watch_lines(success, directory):
    return watched(success, directory, terminal=False)


def watch_live(success, directory):
    return watched(success, directory, terminal=True).rsplit("δ =", 1)[1]


def model_card(success, _directory):
    families = tuple(
        FamilySuccess(round=7, family=name, ratio=ratio, standard_error=error)
        for name, (ratio, error) in success.items()
    )
    return render_card(replace(CARD, success=families)).split("## Success")[1]


def status_page(success, directory):
    made = samples.Coordinator(directory)
    made.found()
    made.publish(*samples.SILOS)
    run_id = made.start().run_id
    errors = {"agreement_error": 0.9, "heterogeneity_error": 0.9}
    made.release(run_id, 1, cohort=samples.SILOS, begin_s=300.0, success=success, **errors)
    try:
        pages = [Parsed(made.html(path)).text for path in ("/", f"/runs/{run_id}")]
    finally:
        made.close()
    return " ".join(page.split("Success by environment")[1] for page in pages)


def demo_line(success, _directory):
    console = Console(width=160, file=io.StringIO(), highlight=False)
    progress = Progress(console)
    progress.console = console
    with progress.stretch("together") as part:
        progress.status(status_json(status(success)), part)
    return console.file.getvalue()


def demo_report(success, directory):
    outcome = outcome_of(200, 300, 500)
    outcome.rounds = status_json(status(success))["finished"]
    write_html(outcome, DemoSettings(), directory / "report.html")
    page = (directory / "report.html").read_text(encoding="utf-8")
    return re.sub("<[^>]+>", " ", page.split('id="exploring"')[1].split("</section>")[0])


VIEWS = [watch_lines, watch_live, model_card, status_page, demo_line, demo_report]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(("ratio", "error", "words"), FIGURES)
def test_every_view_shows_a_figure_with_its_error_or_as_below_noise(
    tmp_path, view, ratio, error, words
):
    text = view({"maze": (ratio, error)}, tmp_path)
    assert words in text
    assert not [each for each in NEVER if each in text.lower()]
    assert bool(re.search(r"\d ± \d", text)) == ("±" in words)


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_says_that_success_is_not_reported(tmp_path, view):
    text = view({}, tmp_path).lower()
    assert "not reported" in text
    assert "below noise" not in text.split("updates")[0]


@pytest.mark.parametrize(("ratio", "error", "words"), FIGURES)
def test_json_has_the_figure_as_summed_its_error_and_whether_noise_hides_it(ratio, error, words):
    message = status({"maze": (ratio, error)})
    message.finished[0].agreement, message.finished[0].agreement_standard_error = ratio, error
    (told,) = status_json(message)["finished"]
    (family,) = told["success"]
    assert family["success_ratio"] == (None if math.isnan(ratio) else ratio)
    assert family["standard_error"] == ("inf" if math.isinf(error) else error)
    hidden = words == "below noise"
    assert (family["below_noise"], told["agreement_below_noise"]) == (hidden, hidden)


@pytest.mark.parametrize(("ratio", "error", "words"), FIGURES)
def test_the_metric_is_inside_its_range_or_not_a_number(ratio, error, words):
    metrics = CoordinatorMetrics()
    earlier = RoundFigures(round=1, outcome="aggregated", success={"maze": (0.5, 0.01)})
    earlier.agreement, earlier.agreement_error = 0.5, 0.01
    metrics.observe_step(earlier)
    figures = RoundFigures(round=2, outcome="aggregated", success={"maze": (ratio, error)})
    figures.agreement, figures.agreement_error = ratio, error
    metrics.observe_step(figures)
    sample = metrics.registry.get_sample_value
    for shown in (
        sample("chorale_federation_success_ratio", {"environment": "maze"}),
        sample("chorale_agreement_ratio"),
    ):
        assert math.isnan(shown) if words == "below noise" else shown == min(1, max(0, ratio))
    # A round without a sum leaves it; a sum that reports none takes it away.
    metrics.observe_step(RoundFigures(round=3, outcome="skipped"))
    assert sample("chorale_federation_success_ratio", {"environment": "maze"}) is not None
    metrics.observe_step(RoundFigures(round=4, outcome="aggregated"))
    for name in ("success_ratio", "success_ratio_standard_error"):
        assert sample(f"chorale_federation_{name}", {"environment": "maze"}) is None
    assert math.isnan(sample("chorale_agreement_ratio"))


def test_a_readable_ratio_has_a_count_of_episodes_far_from_zero():
    """What the first-order error of a quotient needs, and the bound on the error gives."""
    noise = 1.0
    for episodes in (1.5, 4.0, 7.9, 8.1, 9.0, 40.0):
        for share in (0.0, 0.1, 0.5, 1.0):
            (ratio,) = success_ratios(
                {
                    f"{EPISODES}maze": Estimate(episodes, noise),
                    f"{SUCCESSES}maze": Estimate(share * episodes, noise),
                }
            ).values()
            assert math.isnan(readable_ratio(ratio)) or episodes >= noise / WIDEST_RATIO_ERROR


def test_a_mean_is_over_the_environments_that_noise_leaves():
    success = {
        "a": Estimate(0.5, 0.03),
        "b": Estimate(1.02, 0.04),
        "c": Estimate(0.1, 0.4),
        "d": Estimate(math.nan, math.inf),
    }
    assert mean_success(success) == pytest.approx((0.76, 0.025))
    assert success_words(success) == "76.0 ± 2.5 % (2 of 4 environments)"


def test_noise_alone_seldom_makes_a_round_the_best():
    """Thirty rounds of one and the same success, two hundred times over."""
    import numpy as np

    draws = np.random.default_rng(7).normal(0.5, 0.05, size=(200, 30))
    chosen = [newest_of_the_best([Estimate(ratio, 0.05) for ratio in run]) for run in draws]
    assert sum(place is not None for place in chosen) < 20
    # A round that lies twelve standard errors above the others is found each time.
    draws[:, 12] += 0.6
    chosen = [newest_of_the_best([Estimate(ratio, 0.05) for ratio in run]) for run in draws]
    assert chosen.count(12) == 200
