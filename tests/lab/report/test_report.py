"""Reports on a synthetic file: figures recomputed by hand, silos, pictures, hostile names."""

import gzip
import json
import struct

import pytest
from typer.testing import CliRunner

from federation.text import escaped
from lab.cli.main import app
from lab.report import results
from lab.report.curves import evaluation_curves, exploration_curves
from lab.report.document import write_report
from lab.report.errors import ReportError, ResultsError, UnpairedError
from lab.report.plots import draw_plots, slug
from lab.report.report import Choices, build_report
from lab.report.results import load_results
from lab.report.scores import compare, counted_environments, rows_of, score
from lab.report.silos import Option, Silos
from lab.report.summary import summary
from tests.kit.lab.lab_results import (
    ENVIRONMENTS,
    SEEDS,
    SHARDS,
    eval_line,
    federation_one,
    federation_two,
    loaded,
    round_line,
    run_line,
    write,
)


def rate_of(lines, **wanted):
    texts = [x["outcomes"] for x in lines if all(x.get(k) == v for k, v in wanted.items())]
    return sum(text.count("1") for text in texts) / sum(map(len, texts))


def test_scores_are_the_shares_of_the_outcomes(tmp_path):
    lines = federation_one()
    experiment = loaded(tmp_path, lines)
    counted = counted_environments(experiment)
    assert counted == ENVIRONMENTS
    for row in rows_of(experiment):
        found = score(row.final(), 1.0, counted)
        last = 0 if row.setting == "pretrained" else 4
        wanted = {"kind": "eval", "setting": row.setting, "round": last, "temperature": 1.0}
        each = [rate_of(lines, environment=name, **wanted) for name in ENVIRONMENTS]
        assert [found.environments[n].interval.rate for n in ENVIRONMENTS] == pytest.approx(each)
        assert found.macro.interval.rate == pytest.approx(sum(each) / 3)
        assert found.micro.interval.rate == pytest.approx(rate_of(lines, **wanted))
        by_seed = [
            sum(rate_of(lines, environment=n, seed=s, **wanted) for n in ENVIRONMENTS) / 3
            for s in SEEDS
        ]
        assert found.macro.spread.rates == pytest.approx(by_seed)


def test_micro_weighs_tasks_and_macro_environments(tmp_path):
    lines = [
        eval_line("a", 0, "1" * 90 + "0" * 10),
        eval_line("a", 0, "0" * 10, environment="maze", family="maze"),
        run_line("a", 0),
    ]
    experiment = loaded(tmp_path, lines)
    found = score(rows_of(experiment)[0].final(), 1.0, ("craft", "maze"))
    assert found.micro.interval.rate == pytest.approx(90 / 110)
    assert found.macro.interval.rate == pytest.approx(0.45)


def test_a_label_alone(tmp_path):
    lines = [
        eval_line("a", 0, "1110", label="plank"),
        eval_line("a", 0, "0000", label="flag"),
        run_line("a", 0),
    ]
    found = load_results([write(tmp_path, lines)])
    (experiment,) = found.of_label("plank").experiments
    assert score(rows_of(experiment)[0].final(), 1.0, ("craft",)).macro.interval.rate == 0.75
    with pytest.raises(ReportError, match="no-such"):
        found.of_label("no-such")
    told = CliRunner().invoke(app, ["report", str(tmp_path), "--label", "no-such"])
    assert told.exit_code == 1


def test_an_environment_that_no_silo_owns_stays_out_of_the_averages(tmp_path):
    lines = [
        eval_line("a", 0, "1100", silo=0, own=True, same_family=True),
        eval_line("a", 0, "1111"),
        eval_line("a", 0, "0000", environment="textworld", family="textworld"),
        run_line("a", 0),
    ]
    experiment = loaded(tmp_path, lines)
    assert counted_environments(experiment) == ("craft",)
    found = score(rows_of(experiment)[0].final(), 1.0, ("craft",))
    assert found.macro.interval.rate == 1.0
    assert found.environments["textworld"].interval.rate == 0.0


def test_a_missing_environment_leaves_no_average(tmp_path):
    lines = [
        eval_line("a", 0, "11"),
        eval_line("a", 1, "11"),
        eval_line("a", 0, "00", environment="maze", family="maze"),
        run_line("a", 0),
        run_line("a", 1),
    ]
    found = score(rows_of(loaded(tmp_path, lines))[0].final(), 1.0, ("craft", "maze"))
    assert found.macro is None
    assert found.micro is None


def test_an_adapter_of_all_meets_every_silos_on_the_same_tasks(tmp_path):
    lines = federation_one()
    experiment = loaded(tmp_path, lines)
    rows = {row.name: row for row in rows_of(experiment)}
    found = compare(rows["fedse"], rows["local"], 1.0, ENVIRONMENTS)
    wanted = {"kind": "eval", "temperature": 1.0, "round": 4}
    texts = {
        name: "".join(
            x["outcomes"]
            for seed in SEEDS
            for environment in ENVIRONMENTS
            for x in lines
            if {**wanted, "setting": name, "seed": seed, "environment": environment}.items()
            <= x.items()
        )
        for name in ("fedse", "local")
    }
    pairs = list(zip(texts["fedse"], texts["local"], strict=True))
    assert found.counts.tasks == len(pairs) == 3 * 3 * 40
    assert found.counts.only_first == pairs.count(("1", "0"))
    assert found.counts.only_second == pairs.count(("0", "1"))
    assert found.p_value < 1e-6
    assert found.macro.low < found.macro.value < found.macro.high


def test_different_tasks_are_not_paired(tmp_path):
    lines = [
        eval_line("a", 0, "11"), eval_line("b", 0, "110"), eval_line("c", 5, "11"),
        run_line("a", 0), run_line("b", 0), run_line("c", 5),
    ]  # fmt: skip
    a, b, c = rows_of(loaded(tmp_path, lines))
    with pytest.raises(UnpairedError, match="2 and 3"):
        compare(a, b, 1.0, ("craft",))
    with pytest.raises(UnpairedError, match="no task"):
        compare(a, c, 1.0, ("craft",))


def test_silos_are_judged_by_their_own_and_by_the_common_adapter(tmp_path):
    lines = federation_two()
    silos = Silos(loaded(tmp_path, lines), 1.0)
    assert silos.sharded
    assert silos.indices == (0, 1, 2, 3)
    common, alone = (
        Option(setting="fedse", scope="global"),
        Option(setting="local_evolution", scope="alone"),
    )
    for silo, (environment, label) in SHARDS.items():
        other = "b" if label == "a" else "a"
        wanted = {"kind": "eval", "setting": "fedse", "silo": -1, "environment": environment}
        for group, of in (("own", label), ("unseen", other)):
            rate = silos.rate(common, silo, group).interval.rate
            assert rate == pytest.approx(rate_of(lines, label=of, **wanted))
        mine = silos.rate(alone, silo, "own").interval.rate
        wanted = {"kind": "eval", "setting": "local_evolution", "silo": silo}
        assert mine == pytest.approx(rate_of(lines, own=True, **wanted))
        difference = silos.difference(common, alone, silo).value
        assert difference == pytest.approx(silos.rate(common, silo, "own").interval.rate - mine)
    worst = silos.worst(common, alone)
    assert worst.difference.value == min(
        silos.difference(common, alone, silo).value for silo in SHARDS
    )
    personal = Option(setting="fedse", scope="personal")
    best = silos.best([common, personal], alone)
    assert best.difference.value == max(
        silos.worst(option, alone).difference.value for option in (common, personal)
    )


def test_one_adapter_judged_for_several_silos_counts_its_tasks_once(tmp_path):
    silos = Silos(loaded(tmp_path, federation_two()), 1.0)
    common = silos.mean(Option(setting="fedse", scope="global"), "own")
    # Four labels of forty tasks at three seeds.
    assert common.interval.episodes == 4 * 40 * 3
    other = silos.mean(Option(setting="fedse", scope="global"), "other")
    assert other.interval.episodes == 4 * 40 * 3


def test_a_label_of_two_groups_is_refused(tmp_path):
    lines = [
        eval_line("a", 0, "1", silo=0, own=True, same_family=True, round=2),
        eval_line("a", 0, "1", silo=0, own=False, same_family=True),
        run_line("a", 0),
    ]  # fmt: skip
    with pytest.raises(ReportError, match="two groups"):
        Silos(loaded(tmp_path, lines), 1.0)


def test_settings_may_deal_a_label_unlike(tmp_path):
    lines = [
        eval_line("a", 0, "1", silo=0, own=True, same_family=True),
        eval_line("b", 0, "0", silo=0, own=False, same_family=True),
        eval_line("c", 0, "1", silo=-1),
        *(run_line(name, 0) for name in "abc"),
    ]
    silos = Silos(loaded(tmp_path, lines), 1.0)
    a, b, c = silos.options
    assert (silos.rate(a, 0, "own").interval.rate, silos.rate(a, 0, "unseen")) == (1.0, None)
    assert (silos.rate(b, 0, "own"), silos.rate(b, 0, "unseen").interval.rate) == (None, 0.0)
    # Judged once for all: what a silo owns is then for the others to say, who disagree.
    with pytest.raises(ReportError, match=r"silo 0 at seed 0: .* is of two groups"):
        silos.rate(c, 0, "own")


def test_curves_are_means_with_their_range(tmp_path):
    experiment = loaded(
        tmp_path,
        [
            round_line("a", 0, 1, successes=2), round_line("a", 1, 1, successes=6),
            round_line("a", 0, 2, successes=0, episodes=0), round_line("a", 1, 2, successes=5),
            eval_line("a", 0, "10", round=2), eval_line("a", 1, "11", round=2),
            run_line("a", 0), run_line("a", 1),
        ],
    )  # fmt: skip
    (curve,) = exploration_curves(experiment)["craft"]
    assert curve.rounds == (1, 2)
    assert (curve.mean, curve.low, curve.high) == ((40.0, 50.0), (20.0, 50.0), (60.0, 50.0))
    (judged,) = evaluation_curves(experiment)[1.0]
    assert (judged.mean, judged.low, judged.high) == ((75.0,), (50.0,), (100.0,))


def test_the_summary_is_the_line_that_was_asked_for(tmp_path):
    one, two = federation_one(), federation_two()
    results = load_results([write(tmp_path / "1", one), write(tmp_path / "2", two)])
    figures = summary(build_report(results, Choices()), results, Choices())
    assert list(figures) == ["methods", "federation2"]
    assert list(figures["methods"]) == ["pretrained", "local", "central", "fedit", "fedse"]
    wanted = {"kind": "eval", "temperature": 1.0, "setting": "fedse", "round": 4}
    assert figures["methods"]["fedse"] == pytest.approx(100 * rate_of(one, **wanted), abs=0.01)
    wanted = {"kind": "eval", "setting": "local_evolution", "own": False, "same_family": True}
    assert figures["federation2"]["local_evolution_unseen"] == pytest.approx(
        100 * rate_of(two, **wanted), abs=0.01
    )
    assert all(value is not None for value in figures["federation2"].values())


def test_the_worst_silo_is_read_where_it_was_judged_on_most_tasks(tmp_path):
    one, two = federation_one(), federation_two()
    own = []
    for line in two:
        mine = line | {"setting": {"fedse": "fedsa"}.get(line["setting"], line["setting"])}
        if line["kind"] == "run":
            own.append(mine | {"experiment": "own"})
        elif line["own"]:
            own.append(mine | {"outcomes": 8 * line["outcomes"][-9:]})
            own.append(mine | {"own": False, "label": "of nobody"})
    for number, lines in ("1", own), ("2", one), ("3", two):
        write(tmp_path / number, lines)

    def figures(*numbers):
        choices = Choices(options=("fedsa",)) if "1" in numbers else Choices()
        found = load_results([tmp_path / number for number in numbers])
        return summary(build_report(found, choices), found, choices)["federation2"]

    alone, without, all_three = figures("1"), figures("2", "3"), figures("1", "2", "3")
    assert alone["fedse_unseen"] is None
    assert alone["worst_silo_vs_alone"] != without["worst_silo_vs_alone"]
    assert all_three == without | {"worst_silo_vs_alone": alone["worst_silo_vs_alone"]}


def test_what_the_results_do_not_hold_is_null(tmp_path):
    results = load_results([write(tmp_path, [eval_line("fedse", 0, "10"), run_line("fedse", 0)])])
    figures = summary(build_report(results, Choices()), results, Choices())
    assert figures["methods"] == {
        "pretrained": None, "local": None, "central": None, "fedit": None, "fedse": 50.0,
    }  # fmt: skip
    assert set(figures["federation2"].values()) == {None}


def test_roles_follow_methods_or_the_choice(tmp_path):
    lines = [
        eval_line("x", 0, "11", method="fedse"), run_line("x", 0, method="fedse"),
        eval_line("y", 0, "00", method="local_static"), run_line("y", 0, method="local_static"),
    ]  # fmt: skip
    results = load_results([write(tmp_path, lines)])
    for choices, fedse in ((Choices(), 100.0), (Choices(roles={"fedse": "y"}), 0.0)):
        figures = summary(build_report(results, choices), results, choices)["methods"]
        assert (figures["fedse"], figures["local"]) == (fedse, 0.0)
    with pytest.raises(ReportError, match="no such role"):
        build_report(results, Choices(roles={"best": "x"}))
    for choices in (Choices(reference="z"), Choices(options=("z",)), Choices(roles={"fedse": "z"})):
        with pytest.raises(ReportError, match="no finished run"):
            build_report(results, choices)


def test_the_reference_counts_where_an_experiment_has_it(tmp_path):
    write(tmp_path / "1", federation_one())
    write(tmp_path / "2", federation_two())
    results = load_results([tmp_path / "1", tmp_path / "2"])
    report = build_report(results, Choices(reference="central"))
    references = [found.families[0].reference for found in report.experiments]
    assert references == ["central", "fedse"]


def test_a_row_of_silos_own_adapters_may_be_the_reference(tmp_path):
    who = {"silo": 0, "scope": "personal", "own": True, "same_family": True}
    lines = []
    for setting in ("guard", "guard-flip"):
        lines += [
            eval_line(setting, 0, "0110"),
            eval_line(setting, 0, "0111", **who),
            run_line(setting, 0),
        ]
    write(tmp_path, lines)
    report = build_report(load_results([tmp_path]), Choices(reference="guard (personal)"))
    (family,) = report.experiments[0].families
    assert family.reference == "guard (personal)"
    told = {found.second: found.macro.value for found in family.comparisons}
    assert told["guard-flip (personal)"] == 0.0
    assert told["guard-flip"] == pytest.approx(0.25)
    with pytest.raises(ReportError, match="guard-drift"):
        build_report(load_results([tmp_path]), Choices(reference="guard-drift (personal)"))


def png_size(path):
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", content[16:24])


def test_the_command_writes_tables_and_small_pictures(tmp_path):
    write(tmp_path / "1", federation_one())
    write(tmp_path / "2", federation_two())
    out = tmp_path / "docs" / "fedse.md"
    arguments = ["report", str(tmp_path / "1"), str(tmp_path / "2"), "--out", str(out)]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    text = out.read_text()
    pictures = sorted((tmp_path / "1" / "plots").glob("*.png"))
    assert [picture.name for picture in pictures] == [
        "first-evaluation.png", "first-exploration.png", "first-macro.png",
        "second-macro.png", "second-silos-t1.png",
    ]  # fmt: skip
    for picture in pictures:
        assert picture.stat().st_size <= 150_000
        assert min(png_size(picture)) > 200
        assert f"](../1/plots/{picture.name})" in text
    line = json.loads(text.split("```json\n")[1].split("\n")[0])
    assert set(line) == {"methods", "federation2"}
    assert "p (Holm)" in text
    assert "worst_silo_vs_alone" in text
    again = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert again.exit_code == 0
    assert out.read_text() == text


def test_runs_with_guards_say_who_vetoed_and_what_came_back(tmp_path):
    lines = [
        round_line("guard", 0, 1, vetoes=-0.004, restored_round=None),
        round_line("guard", 0, 2, vetoes=0.916, restored_round=None),
        round_line("guard", 0, 3, successes=0, vetoes=None, restored_round=0),
        eval_line("guard", 0, "0110"),
        run_line("guard", 0),
        round_line("plain", 0, 1),
        eval_line("plain", 0, "0111"),
        run_line("plain", 0),
    ]
    write(tmp_path, lines)
    text = write_report(
        [tmp_path], Choices(), output="md", plots=tmp_path / "plots", out=tmp_path / "r.md"
    )
    assert "| guard | 0 | 1: -0 %, 2: 92 % | 3 → 0 |" in text
    assert "| plain | 0 |" not in text.split("### Vetoes")[1]
    without = [line for line in lines if line["setting"] == "plain"]
    (tmp_path / "other").mkdir()
    write(tmp_path / "other", without)
    told = write_report(
        [tmp_path / "other"], Choices(), output="md", plots=tmp_path / "plots", out=None
    )
    assert "### Vetoes" not in told


def test_json_holds_every_figure(tmp_path):
    write(tmp_path, federation_one())
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--format", "json"])
    assert done.exit_code == 0, done.output
    content = json.loads(done.stdout)
    assert content["experiments"][0]["rows"][0]["scores"][0]["macro"]["interval"]["episodes"] > 0
    assert content["summary"]["methods"]["fedse"] > 0


def test_errors_are_told_and_end_the_command(tmp_path):
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert done.exit_code == 1
    assert "is not a file" in done.stderr
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--role", "fedse"])
    assert done.exit_code == 2


def test_kept_results_are_read_packed(tmp_path):
    plain = write(tmp_path / "plain", federation_one())
    packed = tmp_path / "packed"
    packed.mkdir()
    kept = packed / "results.jsonl.gz"
    kept.write_bytes(gzip.compress((plain / "results.jsonl").read_bytes()))
    assert load_results([packed]) == load_results([plain])
    for broken in (kept.read_bytes()[:-20], b"not gzip", kept.read_bytes()[:40] + b"\xff" * 40):
        kept.write_bytes(broken)
        with pytest.raises(ResultsError, match="not a whole gzip file"):
            load_results([packed])


def test_results_that_unpack_to_too_much_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "_MAX_FILE_BYTES", 1000)
    plain = write(tmp_path, federation_one())
    packed = gzip.compress((plain / "results.jsonl").read_bytes())
    for name, content in (("results.jsonl", None), ("results.jsonl.gz", packed)):
        if content is not None:
            (plain / "results.jsonl").unlink()
            (plain / name).write_bytes(content)
        with pytest.raises(ResultsError, match="larger than 1000 bytes"):
            load_results([plain])


def test_hostile_names_stay_text(tmp_path):
    name = "a|b `<script>` $x_1$ ![i](u)"
    lines = [
        *[round_line(name, 0, number) for number in (1, 2)],
        *[eval_line(name, 0, "0110", round=n, environment=name, family=name) for n in (1, 2)],
        run_line(name, 0, experiment="../../etc/$\\frac$"),
    ]
    write(tmp_path, lines)
    text = write_report(
        [tmp_path], Choices(), output="md", plots=tmp_path / "plots", out=tmp_path / "r.md"
    )
    assert "<script>" not in text
    assert escaped(name) in text
    assert {path.parent for path in tmp_path.rglob("*.png")} == {tmp_path / "plots"}
    row = next(line for line in text.splitlines() if line.startswith(f"| {escaped(name)}"))
    assert len(row.replace("\\|", "").split("|")) == 2 + 8


def test_more_than_eight_settings_share_several_pictures(tmp_path):
    names = [f"setting-{n}" for n in range(11)]
    lines = [round_line(name, 0, n) for name in names for n in (1, 2)]
    lines += [eval_line(name, 0, "01") for name in names] + [run_line(name, 0) for name in names]
    results = load_results([write(tmp_path, lines)])
    report = build_report(results, Choices())
    names = draw_plots(results.experiments[0], report.experiments[0], tmp_path / "p", stem="x")
    assert names == ("x-macro.png", "x-exploration.png", "x-exploration-2.png")


def test_slugs_are_file_names():
    assert slug("../../etc/Pässwd") == "etc-p-sswd"
    assert slug("///") == "experiment"
