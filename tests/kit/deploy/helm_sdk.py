"""Helm itself, from its SDK, in a process of its own: it brings a whole Go runtime along.

``python -m tests.kit.deploy.helm_sdk`` reads ``{chart, values: {name: values}}`` from standard
input and answers, for each, what ``helm lint --strict`` found and what ``helm template`` renders.
"""

import json
import subprocess
import sys

from tests.kit.paths import ROOT

RELEASE, NAMESPACE = "one", "chorale"


def helm(chart, cases):
    """Name to ``{lint: [text], templates: {name: text}, error: text}``, for several values."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.kit.deploy.helm_sdk"],
        input=json.dumps({"chart": str(chart), "values": cases}),
        capture_output=True, text=True, check=True, cwd=ROOT, timeout=240,
    )  # fmt: skip
    return json.loads(done.stdout)


def main():
    import helm_python

    asked = json.load(sys.stdin)
    answers = {}
    for name, values in asked["values"].items():
        try:
            report = helm_python.lint(asked["chart"], values, strict=True, namespace=NAMESPACE)
            with helm_python.Chart.load(asked["chart"]) as chart:
                chart.validate_schema(values)
                rendered = chart.render(values, name=RELEASE, namespace=NAMESPACE)
        except helm_python.HelmError as error:
            answers[name] = {"lint": [], "templates": {}, "error": str(error)}
            continue
        # 1 is for information: that a chart could have an icon.
        found = [f"{m['path']}: {m['error']}" for m in report["messages"] if m["severity"] > 1]
        answers[name] = {"lint": found + report["errors"], "templates": rendered, "error": ""}
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
