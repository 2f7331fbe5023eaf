"""Values of the Helm chart that are refused, by its schema or by a template."""

import json
import tomllib

import pytest
import yaml

from tests.kit.deploy.chart import CHART, FOUNDED
from tests.kit.deploy.helm_sdk import helm
from tests.kit.paths import ROOT

pytestmark = pytest.mark.xdist_group("packaging_helm")

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def changed(**coordinator):
    return {"coordinator": {**FOUNDED, **coordinator}}


REFUSED = {
    "no hosts": (changed(hosts=[]), "hosts"),
    "no root key": (changed(rootPublicKey={"value": ""}), "rootPublicKey"),
    "a private root key": (
        changed(rootPublicKey={"value": "-----BEGIN PRIVATE KEY-----\n"}), "rootPublicKey",
    ),
    "an unknown key": (changed(replicas=2), "replicas"),
    "an unknown part": ({**changed(), "coordinatr": {}}, "coordinatr"),
    "a wrong type": (changed(publicPort="7443"), "publicPort"),
    "the tag latest": (changed(image={"repository": "c", "tag": "latest"}), "tag"),
    "a short digest": (changed(image={"repository": "c", "digest": "sha256:00"}), "digest"),
    "a host with blanks": (changed(hosts=["coord.example.org --data /"]), "hosts"),
    "no object storage": (changed(objectStorage={"url": "http://bucket"}), "url"),
    "a setting of the chart's": (
        {**changed(), "silo": {"enabled": True, "settings": {"POLICY_FILE": "/x"}}}, "POLICY_FILE",
    ),
    "a setting in lower case": (
        {**changed(), "silo": {"enabled": True, "settings": {"threads": "8"}}}, "threads",
    ),
    "half a GPU": ({**changed(), "silo": {"enabled": True, "gpus": 0.5}}, "gpus"),
}  # fmt: skip


@pytest.fixture(scope="module")
def answers():
    return helm(CHART, {name: values for name, (values, _) in REFUSED.items()})


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_values_are_refused_and_named(name, answers):
    assert REFUSED[name][1] in answers[name]["error"], answers[name]["error"]
    assert answers[name]["templates"] == {}


def test_versions_are_those_of_this_tree():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == VERSION


def test_the_schema_knows_every_value():
    """Both ways: a value without a schema would be refused, a schema without a value is dead."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def compared(schema, values, path):
        if schema.get("additionalProperties") is False:
            known = set(schema["properties"]) - {"global"}
            assert known == set(values), path
            for key in known:
                compared(schema["properties"][key], values[key], f"{path}.{key}")

    compared(schema, values, "values")
