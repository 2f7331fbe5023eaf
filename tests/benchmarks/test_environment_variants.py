"""The measurement of variants runs from end to end, and its last line is the figures."""

import importlib.util
import json
import sys

import pytest

from tests.kit.paths import ROOT


def _load():
    path = ROOT / "benchmarks" / "environment_variants.py"
    spec = importlib.util.spec_from_file_location("environment_variants_benchmark", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


measure = _load()


def figures_of(capsys, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["environment_variants", *arguments])
    with pytest.raises(SystemExit) as left:
        measure.main()
    assert left.value.code == 0
    printed = capsys.readouterr().out.splitlines()
    return printed, json.loads(printed[-1])


def test_the_market_is_measured_beside_the_paper(capsys, monkeypatch):
    arguments = ("--queries", "40", "--silos", "8", "--tasks", "12")
    printed, figures = figures_of(capsys, monkeypatch, *arguments)
    split = figures["catalog-split"]
    assert split["distractors"] == pytest.approx(0.54, abs=0.02)
    assert split["catalogues"] == pytest.approx(0.75, abs=0.02)
    for kind in measure.POOLED:
        assert figures[kind]["counts"] == measure.COUNTS
        assert 0 < figures[kind]["pairs"] < 1
        assert figures[kind]["plain"] < 1
        assert len(figures[kind]["careful"]) == 4
    assert set(figures["lookalike"]["cost"]) == {"price", "colour", "size", "price+colour"}
    assert all(-0.5 < cost < 0 for cost in figures["lookalike"]["cost"].values())
    assert any("0.65" in line and "bm25-reweighting" in line for line in printed)


def test_webshops_files_are_measured_too(capsys, monkeypatch, tmp_path):
    products = [
        {
            "asin": f"B{n:09d}",
            "name": f"shirt {n % 7}",
            "category": "fashion",
            "query": "shirts",
            "product_category": "x",
            "full_description": f"cloth {n % 5} " * (1 + n % 4),
            "small_description": [f"for {n % 3}"],
            "pricing": f"${n + 1}.50",
            "customization_options": {"color": [{"value": "red"}, {"value": "blue"}]},
        }
        for n in range(60)
    ]
    wish = {"instruction_attributes": ["soft"], "instruction_options": ["red"]}
    human = {
        one["asin"]: [{**wish, "instruction": f"shirt {n % 7} cloth {n % 5}"}]
        for n, one in enumerate(products[:20])
    }
    for name, value in (
        ("items_shuffle", products),
        ("items_ins_v2", {one["asin"]: {"attributes": ["soft"]} for one in products}),
        ("items_human_ins", human),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    printed, figures = figures_of(capsys, monkeypatch, "--webshop", str(tmp_path), "--silos", "4")
    assert (figures["documents"], figures["queries"]) == (60, 20)
    assert "careful" not in figures["rank-wrapper"]
    # No product has a size, so three of the four lookalikes are compared.
    assert 0 < figures["lookalike"]["pairs"] <= 1
    assert not any("careful" in line for line in printed[:-1])
