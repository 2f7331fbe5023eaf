import json
from collections import Counter

import numpy as np
import pytest

from lab.experiment.member import Member
from lab.experiment.participation import taking_part
from lab.experiment.single_run import play_run
from lab.report.lines import parse_line
from tests.kit.lab.experiment_samples import HEAD, runs, setting, silo

FIVE = "".join(
    silo(k).replace(f"shard_index = {k}", f"shard_index = {k % 4}") for k in range(5)
).replace("demonstrations = 3", "demonstrations = 1")
SMALL = HEAD.replace("held_out = 16", "held_out = 4").replace("episodes = 8", "episodes = 2")


def test_each_silo_is_as_likely_as_any_other_and_smaller_choices_are_part_of_larger_ones():
    rounds = range(1, 4001)
    drawn = [taking_part(5, n, silos=10, per_round=3) for n in rounds]
    assert all(len(set(places)) == 3 and list(places) == sorted(places) for places in drawn)
    counts = Counter(place for places in drawn for place in places)
    # 1200 of 4000 each, with a deviation of 29; and pairs, which a rotation would not give evenly.
    assert all(abs(counts[place] - 1200) < 5 * 29 for place in range(10))
    pairs = Counter((a, b) for places in drawn for a in places for b in places if a < b)
    assert len(pairs) == 45
    assert all(abs(count - 4000 / 15) < 5 * 16 for count in pairs.values())
    assert drawn != [taking_part(6, n, silos=10, per_round=3) for n in rounds]
    for number in range(1, 20):
        few, many = (taking_part(5, number, silos=10, per_round=m) for m in (3, 7))
        assert set(few) < set(many)


def test_a_round_is_of_those_who_were_drawn_and_leaves_the_others_as_they_were(
    tmp_path, monkeypatch
):
    """Who evolved, what the rows say, and the personal adapters of the others."""
    text = SMALL.replace("rounds = 2", "rounds = 3") + FIVE
    text += setting("x", "fedse_personal", "per_round = 3") + setting("y", "fedse", "per_round = 3")
    run, other = runs(tmp_path, text)
    played, own = [], []
    evolve = Member.evolve

    def noted(member, adapter, *, round_number, **rest):
        played.append((round_number, member.indices[0]))
        return evolve(member, adapter, round_number=round_number, **rest)

    def told(number, figures, _wall_s):
        own.append(
            {
                index: path.read_bytes()
                for index in range(5)
                for path in sorted((tmp_path / "x").rglob(f"stores/{index}/personal/ditto/*"))
            }
        )
        assert len(figures.norms) == 3

    monkeypatch.setattr(Member, "evolve", noted)
    result = play_run(run, tmp_path / "x", progress=told)
    expected = [taking_part(0, n, silos=5, per_round=3) for n in (1, 2, 3)]
    assert played == [(n + 1, place) for n, places in enumerate(expected) for place in places]
    assert len(set(expected)) > 1
    rounds = [row for row in result.rows if row["kind"] == "round"]
    assert [row["silos"] for row in rounds] == [list(places) for places in expected]
    assert [row["episodes"]["craft"] for row in rounds] == [6, 6, 6]
    for before, after, places in zip([{}, *own], own, expected, strict=False):
        changed = {k for k in after if after[k] != before.get(k)}
        assert changed == set(places)
    for row in result.rows:
        parse_line(json.dumps(row).encode())
    # Another setting of the seed draws the same silos.
    again = play_run(other, tmp_path / "y", progress=lambda *_: None)
    assert [row["silos"] for row in again.rows if row["kind"] == "round"] == [
        list(places) for places in expected
    ]


def test_kappa_is_about_those_who_took_part_and_the_adapter_moves_by_their_mean(tmp_path):
    text = SMALL.replace("rounds = 2", "rounds = 1") + FIVE + setting("x", "fedit", "per_round = 3")
    text += setting("alone", "local_static")
    some, alone = (
        play_run(run, tmp_path / run.setting, progress=lambda *_: None)
        for run in runs(tmp_path, text)
    )
    places = taking_part(0, 1, silos=5, per_round=3)
    assert len(places) == 3
    (adapter,) = some.adapters
    for name, tensor in adapter.items():
        mean = np.mean([alone.adapters[place][name] for place in places], axis=0)
        assert tensor == pytest.approx(mean, abs=1e-4)
    (row,) = (row for row in some.rows if row["kind"] == "round")
    moved = sum(float(np.square(t).sum()) for name, t in adapter.items() if "_B" in name)
    assert 0 < row["kappa"] <= 1
    assert row["delta_l2_mean"] > 0
    assert moved > 0


def test_masks_change_no_bit_of_a_round_of_some(tmp_path):
    text = SMALL + FIVE
    same = "per_round = 3\nnoise = { z = 0.01 }\n"
    text += setting("plain", "fedit", same) + setting("masked", "fedit", same + 'sums = "masked"')
    plain, masked = (
        play_run(run, tmp_path / run.setting, progress=lambda *_: None)
        for run in runs(tmp_path, text)
    )
    ((one,), (other,)) = plain.adapters, masked.adapters
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)


def test_an_attacker_that_stays_away_changes_nothing_in_that_round(tmp_path):
    places = taking_part(0, 1, silos=5, per_round=3)
    (absent, *_), present = (k for k in range(5) if k not in places), places[1]
    text = (
        SMALL.replace("rounds = 2", "rounds = 1") + FIVE + setting("none", "fedit", "per_round = 3")
    )
    for name, place in (("away", absent), ("there", present)):
        attack = f'attack = {{ silo = "silo-{place}", clips = 5, direction = "random" }}\n'
        text += setting(name, "fedit", "per_round = 3\n" + attack)
    found = {
        run.setting: play_run(run, tmp_path / run.setting, progress=lambda *_: None).adapters[0]
        for run in runs(tmp_path, text)
    }
    same = [
        all(found[name][key].tobytes() == found["none"][key].tobytes() for key in found["none"])
        for name in ("away", "there")
    ]
    assert same == [True, False]
