"""The shop's rules, page by page, on a catalogue that the test lays out."""

import numpy as np
import pytest

from evolution.envs import Split, TaskIdError
from evolution.envs.builtin.shop.goal import CAREFUL_STEPS, NoGoalError
from evolution.envs.builtin.shop.products import CATEGORIES, Catalogue, Product
from evolution.envs.builtin.shop.shop import Shop
from evolution.envs.environment import MAX_OBSERVATION_WORDS


def product(category="coat", attributes=("warm", "soft"), price=4, colours=("red",)):
    return Product(
        category=category,
        attributes=attributes,
        colours=colours,
        sizes=("small", "large"),
        price=price,
    )


def filler(count):
    return [product("radio", ("loud", "compact"), 9) for _ in range(count)]


@pytest.fixture
def shop():
    """One coat in the wished colour; the others fail by title or price, and come after it."""
    coats = [
        product(price=4),
        product(attributes=("warm", "soft", "slim"), price=9),
        product(attributes=("warm", "lined"), price=1),
        product(attributes=("soft", "slim"), price=1),
        product(attributes=("slim", "lined"), price=1),
    ]
    made = Shop(catalogue=Catalogue([*coats, *filler(20)]))
    task = next(
        task
        for task in made.task_ids(Split.TRAIN)[::8]
        if set(made.reset(task)[0].split()[1:3]) == {"warm", "soft"}
        and "budget 4" in made.reset(task)[0]
        and "large" in made.reset(task)[0]
    )
    made.reset(task)
    return made


def play(shop, *actions):
    """The last of several answers; all must be understood."""
    for action in actions:
        answer = shop.step(action)
        assert not answer[0].startswith("not"), (action, answer[0])
    return answer


def tail(observation):
    """What follows the goal, which every observation repeats."""
    return observation.partition("budget 4 . ")[2]


def test_buys_the_goal_page_by_page(shop):
    assert tail(play(shop, "search warm soft coat")[0]) == (
        "page 1 . 1 warm soft coat 4 . 2 warm soft slim coat 9 . 3 warm lined coat 1 ."
        " 4 soft slim coat 1 ."
    )
    assert tail(play(shop, "next")[0]) == "page 2 . 1 slim lined coat 1 ."
    play(shop, "search coat soft warm")
    item = "item warm soft coat 4 . colour red . size small large ."
    assert tail(play(shop, "open 1")[0]) == f"{item} picked none ."
    assert tail(play(shop, "pick small")[0]) == f"{item} picked small ."
    assert tail(play(shop, "pick large")[0]) == f"{item} picked large ."
    assert tail(play(shop, "pick red")[0]) == f"{item} picked large red ."
    observation, reward, terminated, truncated, info = play(shop, "buy")
    assert observation.startswith("done . goal ")
    assert (reward, terminated, truncated, shop.success(info)) == (1.0, True, False, True)


def test_a_wrong_option_is_a_purchase_but_no_success(shop):
    *_, info = answer = play(shop, "search warm soft coat", "open 1", "pick small", "buy")
    assert answer[1] == pytest.approx(3 / 5)
    assert answer[2]
    assert not shop.success(info)


def test_back_leaves_the_picks_and_marks_what_was_seen(shop):
    first = play(shop, "search warm soft coat", "open 2", "pick red", "back")[0]
    assert "2 warm soft slim coat 9 seen ." in first
    assert first.count("seen") == 1
    assert play(shop, "open 2")[0].endswith("picked none .")
    play(shop, "back")
    assert tail(play(shop, "back")[0]) == "page none ."
    assert shop.step("back")[0].startswith("not possible .")


@pytest.mark.parametrize(
    ("before", "action"),
    [
        ((), "buy"),
        ((), "next"),
        ((), "back"),
        ((), "open 1"),
        ((), "pick red"),
        ((), "search"),
        ((), "search zebra"),
        ((), "search " + " ".join(["coat"] * 9)),
        (("search radio",), "pick red"),
        (("search radio",), "buy"),
        (("search radio",), "open 5"),
        (("search radio",), "open 0"),
        (("search radio",), "open ²"),
        (("search radio",), "open -1"),
        (("search radio",), "open 1 1"),
        (("search slim lined coat", "next"), "open 2"),
        (("search slim lined coat", "next"), "next"),
        (("search radio", "open 1"), "open 1"),
        (("search radio", "open 1"), "next"),
        (("search radio", "open 1"), "pick blue"),
        (("search radio", "open 1"), "pick medium"),
        (("search radio", "open 1"), "buy now"),
    ],
)
def test_what_is_not_possible_changes_nothing(shop, before, action):
    shown = play(shop, *before)[0] if before else shop.reset(shop.task_ids(Split.TRAIN)[0])[0]
    observation, reward, terminated, _, info = shop.step(action)
    assert observation == f"not possible . {shown}"
    assert (reward, terminated, shop.success(info)) == (0.0, False, False)


def test_running_out_of_steps_buys_nothing(shop):
    play(shop, "search warm soft coat", "open 1", "pick red", "pick large")
    for _ in range(shop.max_steps - 5):
        assert not shop.step("pick red")[3]
    _, reward, terminated, truncated, info = shop.step("pick red")
    assert (reward, terminated, truncated, shop.success(info)) == (0.0, False, True, False)


def test_expert_looks_on_after_a_product_without_the_option():
    """Two coats alike; only the second comes in the colour, and only its own page says so."""
    shop = Shop(
        catalogue=Catalogue([product(colours=("grey",)), product(colours=("red",)), *filler(8)])
    )
    rng = np.random.default_rng(0)
    task = next(t for t in shop.task_ids(Split.TRAIN)[::8] if "red" in shop.reset(t)[0])
    shop.reset(task)
    actions, ended = [], False
    while not ended:
        actions.append(shop.expert_action(rng))
        *_, ended, _, info = shop.step(actions[-1])
    assert [action.split()[0] for action in actions] == (
        ["search", "open", "back", "open", "pick", "pick", "buy"]
    )
    assert (actions[1], actions[3]) == ("open 1", "open 2")
    assert shop.success(info)


def test_expert_never_needs_more_steps_than_promised():
    shop, rng = Shop(), np.random.default_rng(0)
    most = 0
    for task in shop.task_ids(Split.HELD_OUT)[:400]:
        shop.reset(task)
        ended = False
        while not ended:
            _, reward, terminated, truncated, info = shop.step(shop.expert_action(rng))
            ended = terminated or truncated
        assert reward == 1.0
        most = max(most, info["step"])
    assert most == CAREFUL_STEPS < shop.max_steps


def test_labels_are_the_categories_wished_for():
    shop = Shop()
    assert shop.labels == CATEGORIES
    for task in shop.task_ids(Split.TRAIN)[:16]:
        assert shop.task_label(task) in shop.reset(task)[0].partition(" budget")[0].split()


def test_the_longest_pages_stay_within_bounds():
    shop = Shop()
    longest = 0
    for task in shop.task_ids(Split.TRAIN)[:160]:
        goal = shop.reset(task)[0].split()
        words = goal[1 : goal.index("budget") - 2]
        pages = [shop.step(f"search {' '.join(words)}")[0], shop.step("next")[0]]
        pages += [shop.step("open 1")[0], shop.step("open 1")[0]]
        longest = max(longest, *(len(page.split()) for page in pages))
        for page in pages:
            assert set(page.split()) <= shop.vocabulary
    assert 40 < longest <= MAX_OBSERVATION_WORDS


def test_long_results_end_where_the_page_numbers_do():
    catalogue = Catalogue([product() for _ in range(60)] + filler(65))
    shop = Shop(catalogue=catalogue)
    shop.reset(shop.task_ids(Split.TRAIN)[0])
    play(shop, "search warm soft coat", *["next"] * 8)
    assert shop.step("next")[0].startswith("not possible .")


def test_a_shop_without_the_category_says_so():
    shop = Shop(catalogue=Catalogue(filler(8)))
    tasks = shop.task_ids(Split.TRAIN)
    with pytest.raises(NoGoalError, match="coat"):
        shop.reset(tasks[CATEGORIES.index("coat")])
    with pytest.raises(TaskIdError):
        shop.reset(-1)
