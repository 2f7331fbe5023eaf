"""The market: its wishes, its texts, its pages; and that the shop beside it did not move."""

import hashlib

import numpy as np

from evolution.envs.builtin.shop.goods import ABOUT, market_goals, market_stages
from evolution.envs.builtin.shop.market import Market
from evolution.envs.builtin.shop.products import CATEGORIES
from evolution.envs.catalogue import make
from evolution.envs.tasks import Split
from evolution.envs.variants.content import FIELDS

CONTENT = market_stages().content
SHOP = "83f054394d06f75b32bce2b20cac9c03d3eccc178860bacae7edd56f96349c91"


def test_there_are_thousands_of_wishes_and_no_target_is_in_two_splits():
    counts = {split: sum(len(market_goals(split, c)) for c in CATEGORIES) for split in Split}
    assert counts == {Split.PRETRAIN: 512, Split.TRAIN: 2304, Split.HELD_OUT: 512}
    assert (len(CONTENT.documents), len(CONTENT.targets), len(CONTENT.held_out)) == (2000, 832, 64)
    assert not CONTENT.targets & CONTENT.held_out
    found = {
        split: {goal for c in CATEGORIES for goal in market_goals(split, c)} for split in Split
    }
    assert all(len(found[split]) > 0.95 * counts[split] for split in Split), "few say the same"


def test_a_splits_tasks_go_through_all_its_wishes():
    market = Market()
    ids = market.task_ids(Split.HELD_OUT)
    firsts = [market.reset(task)[0] for task in ids[:1024]]
    assert firsts[:512] == firsts[512:]
    assert len(set(firsts[:512])) > 480
    assert all(market.task_label(t) in first.split() for t, first in zip(ids, firsts, strict=False))


def test_each_field_says_something_of_its_own():
    said = {name: {word for d in CONTENT.documents for word in d.text[name]} for name in FIELDS}
    about = set(ABOUT.values())
    assert not said["title"] & about
    assert not said["name"] & about
    assert said["description"] >= about
    assert "red" in said["features"] & said["bullet_points"]
    assert "large" in said["bullet_points"] - said["features"]
    assert len({tuple(sorted(map(repr, d.text.items()))) for d in CONTENT.documents}) > 1990


def test_pages_are_the_shops_and_show_titles_alone():
    market = Market()
    market.reset(market.task_ids(Split.TRAIN)[0])
    market.step("search warm coat")
    observation = market.step("open 1")[0]
    document = CONTENT.documents[market._found[0]]
    assert (
        f" . item {' '.join(document.text['title'])} {document.price:.0f} . colour " in observation
    )
    assert not set(observation.split()) & set(ABOUT.values())
    observation = market.step("back")[0]
    assert market.step("search wool")[0] != observation, "what no page shows can be searched for"


def test_the_shop_is_what_it_was():
    """Published results were played in it: every observation and reward, of 300 tasks a split."""
    shop, digest = make("shop"), hashlib.sha256()
    for task in (t for split in Split for t in shop.task_ids(split)[:300]):
        rng = np.random.default_rng(task)
        digest.update(shop.reset(task)[0].encode())
        while True:
            action = shop.expert_action(rng) if rng.random() < 0.7 else shop.random_action(rng)
            observation, reward, terminated, truncated, info = shop.step(action)
            digest.update(repr((action, observation, reward, terminated, truncated, info)).encode())
            if terminated or truncated:
                break
    assert digest.hexdigest() == SHOP
