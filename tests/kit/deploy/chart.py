"""The Helm chart, and the values of a founded federation."""

from tests.kit.paths import ROOT

CHART = ROOT / "deploy" / "helm" / "chorale"
ROOT_KEY = (
    "-----BEGIN PUBLIC KEY-----\n"
    "MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n"
    "-----END PUBLIC KEY-----\n"
)
FOUNDED = {"hosts": ["coord.example.org", "10.0.0.1"], "rootPublicKey": {"value": ROOT_KEY}}
