"""policy.toml: what cannot be honoured is an error; what is written for a site loads and fits."""

from dataclasses import replace
from pathlib import Path

import pytest

from dp.config import Mode
from federation.forecast.proposal import Base, write_plan
from federation.forecast.sizing import LEAST_DIMENSION, Wish, size_of
from federation.plan.read import read_plan
from silo_agent.errors import PolicyFileError
from silo_agent.policy.document import NO_PRIVACY, Policy
from silo_agent.policy.policy import check_descriptor, check_plan
from silo_agent.policy.proposal import write_default, write_for_plan
from tests.kit.paths import ROOT
from tests.kit.silo_agent.policy_samples import (
    COMPOSED,
    EXACT,
    LAYOUT,
    MODES,
    NOW_UNIX_S,
    PLAN,
    SITE,
    edited,
    make_descriptor,
    make_plan,
    make_policy,
    make_task,
)

EXAMPLES = ROOT / "deploy" / "examples"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("max_rounds = 5", "max_round = 5"), "limits.max_round: unknown key"),
        (("[limits]", "[limit]"), "limit: unknown key"),
        (("max_rounds = 5", 'max_rounds = "5"'), "limits.max_rounds"),
        (("max_clip_l2 = 2.0", "max_clip_l2 = nan"), "privacy.max_clip_l2"),
        (("silo = 50.0", "silo = inf"), "privacy.epsilon_caps.silo"),
        (("silo = 50.0", "silo = -1.0"), "privacy.epsilon_caps.silo"),
        (("silo = 50.0", "round = 50.0"), "privacy.epsilon_caps.round: unknown key"),
        (("max_sampling_rate = 0.25", "max_sampling_rate = 1.1"), "privacy.max_sampling_rate"),
        (('units = ["task"]', 'units = ["row"]'), "privacy.units"),
        (("epsilon_caps = { silo = 50.0, task = 40.0 }", "epsilon_cap = 50.0"), "epsilon_caps = {"),
        (("min_colluding = 1", "min_colluding = 0"), "cohort.min_colluding"),
        (("07:30-08:30", "7-9"), "HH:MM-HH:MM"),
        (('modes = ["silo"]', 'modes = ["all"]'), "privacy.modes"),
        (("[models]", '[policy]\napproval = "by-mail"\n[models]'), "policy.approval"),
        (("max_rounds = 5", "max_rounds = 5\ngpus = [0, 0]"), "name each GPU once"),
        (("max_rounds = 5", "max_rounds = 5\ngpus = [-1]"), "limits.gpus"),
        (("max_rounds = 5", "max_rounds = 5\nmax_disk_bytes = 0"), "limits.max_disk_bytes"),
        (("max_rounds = 5", "max_rounds = 5\nmax_kept_runs = 0"), "limits.max_kept_runs"),
        (
            ("max_rounds = 5", "max_rounds = 5\nmax_local_hours_per_round = 0.0"),
            "limits.max_local_hours_per_round",
        ),
    ],
)
def test_a_policy_that_cannot_be_honoured_is_an_error(change, problem):
    with pytest.raises(PolicyFileError, match=problem):
        make_policy(change)


def test_a_missing_policy_file_says_how_to_get_one(tmp_path: Path):
    with pytest.raises(PolicyFileError, match="policy init"):
        Policy.load(tmp_path / "policy.toml")


def test_the_starter_file_refuses_everything(tmp_path: Path):
    path = tmp_path / "policy.toml"
    assert write_default(path) is False
    assert path.stat().st_mode & 0o777 == 0o600
    decision = check_plan(Policy.load(path), plan=make_plan(), site=SITE)
    assert not decision.accepted
    # A floor is there for those who edit it by hand.
    assert Policy.load(path).limits.min_episodes_per_round > 0
    assert Policy.load(path).limits.min_tasks_per_round > 0
    assert Policy.load(path).privacy.accept_no_privacy is None


def test_caps_hold_the_kinds_that_have_a_budget():
    assert make_policy().privacy.caps() == {"silo": 50.0, "task": 40.0}
    assert make_policy(("task = 40.0", "task = 0")).privacy.caps() == {"silo": 50.0}
    assert Policy.parse(b"").privacy.caps() == {}


LARGER = {
    "none": ("clip_l2 = 2.0", "clip_l2 = 2.1", "clip"),
    "silo": ("clip_l2 = 2.0", "clip_l2 = 2.1", "clip"),
    "record_local": ("sampling_rate = 0.25", "sampling_rate = 0.26", "sampling_rate"),
    "record_distributed": ("steps_per_round = 3", "steps_per_round = 4", "steps"),
}


@pytest.mark.parametrize("mode", MODES)
def test_a_policy_written_for_a_plan_accepts_it_and_nothing_larger(tmp_path: Path, mode: str):
    path = tmp_path / "policy.toml"
    plan = make_plan(*MODES[mode])
    write_for_plan(path, plan, accept_no_privacy=True)
    policy = Policy.load(path)
    assert check_plan(policy, plan=plan, site=SITE).accepted
    assert policy.limits.min_episodes_per_round == policy.limits.max_episodes_per_round == 128
    assert policy.limits.min_tasks_per_round == 32
    assert (policy.privacy.accept_no_privacy is not None) is (mode == "none")
    old, new, rule = LARGER[mode]
    larger = read_plan(edited(edited(PLAN, *MODES[mode]), (old, new)).encode())
    assert check_plan(policy, plan=larger, site=SITE).rule == rule
    assert check_descriptor(
        policy,
        descriptor=make_descriptor(plan),
        silo_id="silo-a",
        plan=plan,
        site=SITE,
        layout=LAYOUT,
        now_unix_s=NOW_UNIX_S,
        task=make_task(),
    ).accepted


@pytest.mark.parametrize("mode", MODES)
def test_a_policy_written_for_a_plan_has_room_for_its_attempts_and_no_more(tmp_path, mode):
    """The first attempt at a sum and every spare one; all of a run's debits in one day."""
    plan = make_plan(*MODES[mode])
    write_for_plan(tmp_path / "policy.toml", plan)
    limits = Policy.load(tmp_path / "policy.toml").limits
    spare = plan.charged_releases - plan.releases
    trainings = plan.charged_releases if mode == "record_local" else 0
    assert limits.max_attempts_per_round == 1 + spare > 1
    assert limits.max_attempts_per_day == plan.charged_releases + trainings


def test_a_policy_written_for_a_plan_has_its_widest_clip_least_noise_and_ready_time(tmp_path):
    wide = "delta_clip_l2 = 3.5\nsilo_noise_multiplier = 2.5"
    late = ("ready_after_s = 30", "ready_after_s = 60")
    plan = make_plan(*MODES["record_local"], ("delta_clip_l2 = 3.0", wide), late)
    write_for_plan(tmp_path / "policy.toml", plan)
    policy = Policy.load(tmp_path / "policy.toml")
    assert (policy.privacy.max_clip_l2, policy.privacy.min_noise_multiplier) == (3.5, 2.5)
    assert policy.limits.min_ready_after_s == 60
    assert check_plan(policy, plan=plan, site=SITE).accepted


def test_a_policy_written_for_a_plan_lets_a_silo_choose_what_it_has_and_the_plan_allows(tmp_path):
    path = tmp_path / "policy.toml"
    free = make_plan(
        ('method = "fed-se"', 'method = "fed-se"\nlocal_parts = true'),
        ("ready_deadline_s = 300", "ready_deadline_s = 300\nready_after_s = 60"),
        ("[rounds]", "[vetoes]\n[rounds]"),
    )
    own = replace(SITE, own_parts=("hints",), guarded=True)
    write_for_plan(path, free, own_parts=own.own_parts)
    assert check_plan(Policy.load(path), plan=free, site=own).accepted
    other = replace(own, own_parts=("hints", "not-worse"))
    assert check_plan(Policy.load(path), plan=free, site=other).rule == "own_parts"
    write_for_plan(path, make_plan(), own_parts=own.own_parts)
    assert Policy.load(path).methods.own_parts == ()
    assert check_plan(Policy.load(path), plan=free, site=own).rule == "own_parts"
    assert not Policy.load(path).privacy.allow_vetoes


def test_limits_that_are_not_written_do_not_limit_and_a_proposal_limits_time(tmp_path):
    limits = make_policy().limits
    assert (limits.max_local_hours_per_round, limits.max_disk_bytes, limits.gpus) == (None,) * 3
    write_for_plan(tmp_path / "policy.toml", make_plan())
    written = Policy.load(tmp_path / "policy.toml").limits
    assert written.max_local_hours_per_round == pytest.approx(300 / 3600)
    longer = make_plan(("ready_deadline_s = 300", "ready_deadline_s = 301"))
    policy = Policy.load(tmp_path / "policy.toml")
    assert check_plan(policy, plan=longer, site=SITE).rule == "local_time"


@pytest.mark.parametrize("figures", [(), (EXACT,)], ids=["quiet", "exact"])
def test_a_proposal_for_a_plan_without_noise_waits_for_the_operators_word(tmp_path, figures):
    plan = make_plan(*MODES["none"], *figures)
    path = tmp_path / "policy.toml"
    write_for_plan(path, plan)
    assert Policy.load(path).privacy.allow_exact_figures is bool(figures)
    assert check_plan(Policy.load(path), plan=plan, site=SITE).rule == "no_privacy_accepted"
    # The line is there, to be read and uncommented.
    path.write_text(path.read_text().replace("# accept_no_privacy", "accept_no_privacy"))
    assert check_plan(Policy.load(path), plan=plan, site=SITE).accepted
    louder = make_plan(*MODES["none"], EXACT)
    assert check_plan(Policy.load(path), plan=louder, site=SITE).accepted is bool(figures)


def test_no_other_words_accept_that_there_is_no_privacy():
    with pytest.raises(PolicyFileError, match=f"accept_no_privacy.*{NO_PRIVACY}"):
        Policy.parse(b'[privacy]\naccept_no_privacy = "yes"')


def test_a_policy_for_a_run_that_protects_silos_as_well_has_both_budgets(tmp_path: Path):
    plan = make_plan(*MODES["record_local"], COMPOSED)
    write_for_plan(tmp_path / "policy.toml", plan)
    policy = Policy.load(tmp_path / "policy.toml")
    assert set(policy.privacy.caps()) == {"task", "silo"}
    # The plan's cap is about tasks; what the silo may lose is what this run costs it.
    assert policy.privacy.caps()["task"] == plan.privacy.epsilon_cap
    assert policy.privacy.caps()["silo"] < plan.privacy.epsilon_cap
    assert check_plan(policy, plan=plan, site=SITE).accepted
    noisier = make_plan(*MODES["record_local"])
    assert check_plan(policy, plan=noisier, site=SITE).accepted


def test_what_nobody_edited_is_replaced_and_an_edit_stays_unless_it_is_said(tmp_path):
    path = tmp_path / "policy.toml"
    plan = read_plan((EXAMPLES / "plan-demo-shards.toml").read_bytes())
    other = make_plan(*MODES["record_local"])
    assert write_default(path) is False
    # The starter by a proposal, that by another one, and that by the starter again.
    assert write_for_plan(path, plan) is True
    assert Policy.load(path).methods.evolvers == ("fed-se",)
    assert write_for_plan(path, other) is True
    assert Policy.load(path).privacy.modes == ("record_local",)
    assert path.stat().st_mode & 0o777 == 0o600
    assert write_default(path) is True
    assert [one.name for one in tmp_path.iterdir()] == ["policy.toml"]
    written = path.read_text()
    first, _, rest = written.partition("\n")
    for edited_text in (
        f"{written}# edited\n",
        written.replace("max_rounds = 0", "max_rounds = 1"),
        written.replace("\n", "\r\n"),
        rest.replace("auto", "manual"),
        f"{first}\n",
        "",
    ):
        path.write_bytes(edited_text.encode())
        for write in (write_default, lambda at: write_for_plan(at, plan)):
            with pytest.raises(PolicyFileError, match=r"exists, and was edited.*--force"):
                write(path)
        assert path.read_bytes() == edited_text.encode()
    assert write_for_plan(path, plan, force=True) is True
    assert Policy.load(path).methods.evolvers == ("fed-se",)
    path.write_bytes(b"\xff\xfe")
    assert write_default(path, force=True) is True
    # The starter of a release that wrote no digest.
    path.write_text(rest)
    assert write_for_plan(path, plan) is True


@pytest.mark.parametrize("mode", Mode)
def test_a_plan_that_was_sized_is_accepted_by_the_policy_proposed_for_it(tmp_path, mode):
    wish = Wish(
        silos=100,
        episodes=80,
        epsilon=None if mode is Mode.NONE else 8.0,
        delta=1e-5,
        mode=mode,
        colluding=1,
        rounds=3,
        tries=4,
        dimension=LEAST_DIMENSION,
    )
    base = Base(sha256=SITE.base_sha256.hex())
    _, plan = write_plan(size_of(wish), name="plan", base=base, environments=("craft",))
    write_for_plan(tmp_path / "policy.toml", plan, accept_no_privacy=True)
    decision = check_plan(Policy.load(tmp_path / "policy.toml"), plan=plan, site=SITE)
    assert decision.accepted, decision.detail
