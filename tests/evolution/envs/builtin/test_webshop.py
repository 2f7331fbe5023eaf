"""WebShop's product files: small ones in its format, and everything that can be wrong with them."""

import json

import pytest

from evolution.envs.builtin.shop.entries import MAX_ENTRY_CHARACTERS, array_entries, object_entries
from evolution.envs.builtin.shop.webshop import load_webshop
from evolution.envs.variants.measured import replayed
from evolution.envs.variants.spec import VariantSpec
from evolution.envs.variants.stages import Search
from evolution.envs.variants.variant import stages_of
from evolution.errors import EnvironmentSetupError, ProductFileError


def entry(asin="B000000001", **changes):
    found = {
        "asin": asin,
        "name": "Men's Slim-Fit Shirt",
        "category": "fashion",
        "query": "men's shirts",
        "product_category": "Clothing › Men › Shirts",
        "full_description": "Soft cotton, machine washable.",
        "small_description": ["Long sleeve", "Button down"],
        "pricing": "$19.99",
        "customization_options": {
            "Color": [{"value": "Navy/White ", "image": "x.jpg"}, {"value": "Red"}],
            "size": [{"value": "Small"}, {"value": "X-Large"}],
            "style": None,
        },
        "images": ["x.jpg"],
        "brand": "ignored",
    }
    return {**found, **changes}


ATTRIBUTES = {
    "B000000001": {"attributes": ["slim fit", "long sleeve"], "instruction": "x"},
    "B999999999": {"attributes": 3},
}
HUMAN = {
    "B000000001": [
        {
            "asin": "B000000001",
            "instruction": "i want a slim fit shirt in red, size x-large.",
            "instruction_attributes": ["slim fit"],
            "instruction_options": ["red", "x-large", "gift wrap"],
            "worker_id": "w",
        },
        {"instruction": "no attributes", "instruction_attributes": []},
    ],
    "B999999999": [],
}


def write(directory, products, attributes=None, human=None):
    paths = {"products": directory / "items_shuffle.json"}
    paths["products"].write_text(products if isinstance(products, str) else json.dumps(products))
    for name, value in (("attributes", attributes), ("human", human)):
        if value is not None:
            paths[name] = directory / f"items_{name}.json"
            paths[name].write_text(value if isinstance(value, str) else json.dumps(value))
    return paths


def load(directory, products, attributes=None, human=None, **limits):
    return load_webshop(**write(directory, products, attributes, human), **limits)


def test_a_product_has_webshops_fields_options_and_price(tmp_path):
    found = load(tmp_path, [entry()], ATTRIBUTES, HUMAN)
    (document,) = found.stages.content.documents
    assert document.key == "B000000001"
    assert document.text == {
        "name": ("men", "s", "slim", "fit", "shirt"),
        "title": ("men", "s", "slim", "fit", "shirt"),
        "description": ("soft", "cotton", "machine", "washable"),
        "features": ("slim", "fit", "long", "sleeve"),
        "bullet_points": ("long", "sleeve", "button", "down"),
    }
    assert document.options == {"colour": ("navy | white", "red"), "size": ("small", "x-large")}
    assert document.price == 19.99
    assert document.traits["product_category"] == ("Clothing › Men › Shirts",)


def test_a_human_instruction_is_a_goal_and_a_wish(tmp_path):
    found = load(tmp_path, [entry()], ATTRIBUTES, HUMAN)
    (goal,) = found.goals
    (wish,) = found.stages.content.wishes
    assert goal.instruction == "i want a slim fit shirt in red, size x-large"
    assert goal.attributes == ("slim fit",)
    assert goal.options == ("red", "x-large", "gift wrap")
    assert goal.budget in (30.0, 40.0, 50.0), "the larger of two of the next four tens"
    assert wish.target == "B000000001"
    assert wish.options == {"colour": "red", "size": "x-large"}
    assert wish.budget == goal.budget
    assert load(tmp_path, [entry()], ATTRIBUTES, HUMAN).goals == found.goals


@pytest.mark.parametrize(
    ("pricing", "price"),
    [("", 100.0), (None, 100.0), ("$9", 9.0), ("$9.99$20.01", 15.0), ("$1,299.50", 1299.5)],
)
def test_prices(tmp_path, pricing, price):
    found = load(tmp_path, [entry(pricing=pricing)])
    assert found.stages.content.documents[0].price == price


def test_an_unaffordable_product_has_no_budget_and_options_may_be_a_table(tmp_path):
    listed = dict(HUMAN["B000000001"][0], instruction_options={"color": "red"})
    found = load(tmp_path, [entry(pricing="$985")], ATTRIBUTES, {"B000000001": [listed]})
    assert found.goals[0].budget is None
    assert found.goals[0].options == ("red",)


def test_webshops_own_rules_leave_products_out(tmp_path):
    products = [
        entry("B000000001", name="first"),
        entry("B000000001", name="second"),
        entry("nan"),
        entry("B00000000123"),
        entry("B000000002", small_description="one text", customization_options=""),
        entry("B000000003"),
    ]
    found = load(tmp_path, products, most=5).stages.content
    assert [one.key for one in found.documents] == ["B000000001", "B000000002"]
    assert found.documents[0].text["name"] == ("first",)
    assert found.documents[1].text["bullet_points"] == ("one", "text")
    assert found.documents[1].options == {}
    assert found.documents[1].text["features"] == ()


def test_variants_work_on_the_files(tmp_path):
    products = [
        entry(f"B{n:09d}", name=f"shirt {n}", full_description=f"cloth {n % 3}") for n in range(40)
    ]
    human = {
        one["asin"]: [dict(HUMAN["B000000001"][0], instruction=f"shirt {n}")]
        for n, one in enumerate(products[:10])
    }
    stages = load(tmp_path, products, None, human).stages
    (results,) = replayed(stages, [("shirt", "7")])
    assert results[0] == "B000000007"
    split = stages_of(stages, VariantSpec(kind="catalog-split", index=1)).content
    assert len(split.documents) == 10 + 21
    colour = stages_of(stages, VariantSpec(kind="lookalike", choice=1)).content
    clones = [d for d in colour.documents if d.key.startswith("LK_colour_")]
    assert len(clones) == 10
    assert {d.options["colour"] for d in clones} == {("navy | white",)}
    dear = stages_of(stages, VariantSpec(kind="lookalike", choice=0)).content
    budgets = {wish.target: wish.budget for wish in stages.content.wishes}
    clones = [d for d in dear.documents if d.key.startswith("LK_price_")]
    assert all(d.price > budgets[d.key.split("_")[2]] for d in clones)
    described = stages_of(stages, VariantSpec(kind="field-subset", choice=2))
    assert Search(described).find(["cloth"])
    assert not Search(described).find(["shirt"])


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": 3}, "name"),
        ({"full_description": None}, "full_description"),
        ({"small_description": {"a": 1}}, "small_description"),
        ({"small_description": ["x", 3]}, "small_description"),
        ({"small_description": ["x"] * 1001}, "small_description"),
        ({"query": []}, "query"),
        ({"pricing": "cheap"}, "pricing"),
        ({"pricing": "$,,"}, "pricing"),
        ({"pricing": "$99999999999"}, "pricing"),
        ({"pricing": 9.99}, "pricing"),
        ({"customization_options": ["red"]}, "customization_options"),
        ({"customization_options": {"color": "red"}}, "customization_options.'color'"),
        ({"customization_options": {"color": ["red"]}}, "customization_options.'color'.value"),
        ({"name": "x" * 200_001}, "name"),
    ],
)
def test_a_wrong_field_is_named_with_its_file_and_entry(tmp_path, changes, field):
    with pytest.raises(ProductFileError) as caught:
        load(tmp_path, [entry("B000000009"), entry(**changes)])
    assert (caught.value.path.name, caught.value.entry) == ("items_shuffle.json", "B000000001")
    assert caught.value.field == field
    assert all(part in str(caught.value) for part in ("items_shuffle.json", "B000000001", field))
    assert isinstance(caught.value, EnvironmentSetupError)


@pytest.mark.parametrize(
    ("attributes", "human", "wrong"),
    [
        ({"B000000001": []}, None, ("items_attributes.json", "B000000001", "")),
        (
            {"B000000001": {"attributes": "x"}},
            None,
            ("items_attributes.json", "B000000001", "attributes"),
        ),
        (None, {"B000000001": {}}, ("items_human.json", "B000000001", "")),
        (None, {"B000000001": [3]}, ("items_human.json", "B000000001[0]", "")),
        (
            None,
            {"B000000001": [{"instruction": "x"}]},
            ("items_human.json", "B000000001[0]", "instruction_attributes"),
        ),
        (
            None,
            {"B000000001": [{"instruction": 3, "instruction_attributes": ["a"]}]},
            ("items_human.json", "B000000001[0]", "instruction"),
        ),
    ],
)
def test_the_other_files_are_as_strict(tmp_path, attributes, human, wrong):
    with pytest.raises(ProductFileError) as caught:
        load(tmp_path, [entry()], attributes, human)
    assert (caught.value.path.name, caught.value.entry, caught.value.field) == wrong


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected '['"),
        ("{}", "expected '['"),
        ("[]", "no product"),
        ("[3]", "expected an object or an array"),
        ('[{"asin": "a"} {"asin": "b"}]', "expected ','"),
        ('[{"asin": "a"}', "the end of the file"),
        ('[{"asin": "a"', "is not JSON"),
        ('[{"asin": NaN}]', "NaN"),
        ('[{"asin": -Infinity}]', "Infinity"),
        ("[" + "[" * 100_000 + "]" * 100_000 + "]", "nested too deeply"),
        ('[{"a": "' + "x" * (MAX_ENTRY_CHARACTERS + 200_000) + '"}]', "is longer than"),
        ('[["asin"]]', "expected an object"),
        ('[{"asin": 3}]', "asin"),
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path, text, said):
    with pytest.raises(ProductFileError, match=said.replace("[", r"\[")):
        load(tmp_path, text)


def test_a_file_that_cannot_be_read_and_bytes_that_are_no_text(tmp_path):
    with pytest.raises(ProductFileError, match="cannot be read"):
        load_webshop(tmp_path / "absent.json")
    path = tmp_path / "bytes.json"
    path.write_bytes(b'[{"asin": "\xff"}]')
    with pytest.raises(ProductFileError, match="UTF-8"):
        load_webshop(path)
    with pytest.raises(ValueError, match="most"):
        load_webshop(path, most=0)


def test_entries_are_read_across_pieces_and_no_further_than_asked(tmp_path):
    path = tmp_path / "large.json"
    values = [{"n": n, "text": 'é"]},' * (3000 + n)} for n in range(30)]
    path.write_text(
        " [\n" + " ,\n".join(json.dumps(v, ensure_ascii=False) for v in values) + "\n] "
    )
    assert list(array_entries(path)) == values
    assert path.stat().st_size > 3 * (1 << 16)
    path.write_text(json.dumps(values[:3])[:-1] + ', "not an entry')
    entries = array_entries(path)
    assert [next(entries) for _ in range(3)] == values[:3]
    with pytest.raises(ProductFileError, match="entry '3'"):
        next(entries)
    path.write_text(json.dumps({"a": [1], "b": {}}))
    assert list(object_entries(path)) == [("a", [1]), ("b", {})]
    path.write_text("{3: []}")
    with pytest.raises(ProductFileError, match="quotes"):
        list(object_entries(path))
