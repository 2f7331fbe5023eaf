"""The Helm chart: linted and rendered by Helm's own SDK, checked against Kubernetes' own schemas.

Covered: every template with several values, the values' schema, the restricted profile, that the
containers' commands and settings are ones we have, the rules. Not covered: a cluster; the schemas
of the Prometheus operator, whose objects are checked by hand and their rules by promtool.
"""

import json
import re
import shlex
import shutil
import tomllib

import kubernetes_validate
import pytest
import yaml

from server.config import CoordinatorConfig
from silo_agent.config import SiloConfig
from silo_agent.policy.document import Policy
from tests.kit.deploy.chart import CHART, FOUNDED
from tests.kit.deploy.commands import require_command
from tests.kit.deploy.helm_sdk import NAMESPACE, RELEASE, helm
from tests.kit.deploy.prometheus_files import promtool
from tests.kit.paths import ROOT

pytestmark = pytest.mark.xdist_group("packaging_helm")

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
POLICY = (ROOT / "deploy" / "examples" / "policy.toml").read_text()
EVERYTHING = {
    "enabled": True,
    "serviceMonitor": {"enabled": True, "labels": {"release": "monitoring"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "monitoring"}},
    "dashboards": {"enabled": True, "annotations": {"grafana_folder": "Chorale"}},
    "podDisruptionBudget": {"enabled": True},
    "probesTls": {"existingSecret": "probes"},
    "podAnnotations": {"example.org/owner": "ops"},
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]}}},
    "extraEnv": [{"name": "TZ", "value": "UTC"}],
}  # fmt: skip
MONITORING = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
WHOLE = {
    "imagePullSecrets": [{"name": "pull"}],
    "coordinator": {
        **FOUNDED, **EVERYTHING,
        "image": {"repository": "registry.example.org/c", "digest": "sha256:" + "0" * 64},
        "database": {"existingSecret": "database", "key": "url"},
        "objectStorage": {"url": "s3://bucket/oncology", "existingSecret": "storage"},
        "persistence": {"existingClaim": "kept"},
        "backup": {"enabled": True, "existingClaim": "backups", "keepDays": 7},
        "service": {"type": "LoadBalancer", "annotations": {"example.org/lb": "tcp"},
                    "loadBalancerSourceRanges": ["192.0.2.0/24"]},
        "networkPolicy": {
            "enabled": True, "from": [{"ipBlock": {"cidr": "192.0.2.0/24"}}],
            "monitoringFrom": MONITORING,
            "egress": [{"ports": [{"protocol": "TCP", "port": 5432}]}],
        },
    },
    "silo": {
        **EVERYTHING,
        "invite": {"existingSecret": "invite"},
        "baseModel": {"path": "/models/base", "existingClaim": "models"},
        "settings": {"THREADS": "8", "ENVIRONMENTS": '["craft"]', "SEED": "3"},
        "policy": POLICY,
        "gpus": 2,
        "runtimeClassName": "nvidia",
        "persistence": {"size": "100Gi", "storageClass": "fast"},
        "networkPolicy": {
            "enabled": True, "coordinator": [{"ipBlock": {"cidr": "192.0.2.1/32"}}],
            "coordinatorPorts": [7443, 7444], "monitoringFrom": MONITORING,
            "egress": [{"ports": [{"protocol": "TCP", "port": 8000}]}],
        },
    },
}  # fmt: skip
CASES = {
    "coordinator": {"coordinator": FOUNDED},
    "silo": {"coordinator": {"enabled": False},
             "silo": {"enabled": True, "settings": {"ENVIRONMENTS": '["craft"]'}}},
    "whole": WHOLE,
    "ipv6": {"ipv6": True, "coordinator": FOUNDED, "silo": {"enabled": True}},
    "open": {"coordinator": {**FOUNDED, "networkPolicy": {"enabled": False},
                             "rootPublicKey": {"existingConfigMap": "root"}},
             "fullnameOverride": "federation"},
}  # fmt: skip
CUSTOM = {"ServiceMonitor", "PrometheusRule"}


@pytest.fixture(scope="module")
def answers():
    return helm(CHART, CASES)


@pytest.fixture(scope="module")
def objects(answers):
    """Case to its objects, with the rendered files that they stand in."""
    found = {}
    for case in CASES:
        assert answers[case]["error"] == ""
        found[case] = [
            document
            for name, text in answers[case]["templates"].items()
            if not name.endswith("NOTES.txt")
            for document in yaml.safe_load_all(text)
            if document is not None
        ]
    return found


def of_kind(documents, kind):
    return {d["metadata"]["name"]: d for d in documents if d["kind"] == kind}


def pods(documents):
    """Name to pod specification, of stateful sets, backups and test pods."""
    found = {n: d["spec"]["template"] for n, d in of_kind(documents, "StatefulSet").items()}
    jobs = {n: d["spec"]["jobTemplate"] for n, d in of_kind(documents, "CronJob").items()}
    backups = {name: job["spec"]["template"] for name, job in jobs.items()}
    return {**found, **backups, **of_kind(documents, "Pod")}


def containers(pod):
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


@pytest.mark.parametrize("case", CASES)
def test_helm_lint_finds_nothing(case, answers):
    assert answers[case]["lint"] == []


@pytest.mark.parametrize("version", ["1.27", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("case", CASES)
def test_kubernetes_takes_every_object(case, version, objects):
    for document in objects[case]:
        if document["kind"] not in CUSTOM:
            kubernetes_validate.validate(document, version, strict=True)


def test_kubernetes_would_refuse_a_wrong_object(objects):
    (found,) = of_kind(objects["coordinator"], "StatefulSet").values()
    wrong = json.loads(json.dumps(found))
    wrong["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


def test_what_is_made_is_what_was_asked_for(objects):
    kinds = {case: sorted({d["kind"] for d in documents}) for case, documents in objects.items()}
    plain = ["ConfigMap", "NetworkPolicy", "Pod", "Service", "ServiceAccount", "StatefulSet"]
    assert kinds["coordinator"] == plain
    assert kinds["silo"] == plain[1:]
    assert kinds["open"] == ["Pod", "Service", "ServiceAccount", "StatefulSet"]
    assert set(kinds["whole"]) == {*plain, *CUSTOM, "CronJob", "PodDisruptionBudget"}
    assert set(of_kind(objects["whole"], "StatefulSet")) == {
        f"{RELEASE}-chorale-coordinator", f"{RELEASE}-chorale-silo",
    }  # fmt: skip
    assert set(of_kind(objects["open"], "StatefulSet")) == {"federation-coordinator"}


@pytest.mark.parametrize("case", CASES)
def test_pods_fit_the_restricted_profile(case, objects):
    for name, pod in pods(objects[case]).items():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False, name
        # Variables of services would be unknown settings, which both daemons refuse.
        assert spec["enableServiceLinks"] is False, name
        shared = spec["securityContext"]
        assert shared["runAsNonRoot"] is True
        assert shared["runAsUser"] == shared["runAsGroup"] == shared["fsGroup"] == 10001
        assert shared["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        for volume in spec.get("volumes", ()):
            allowed = {"emptyDir", "configMap", "secret", "persistentVolumeClaim"}
            assert set(volume) - {"name"} <= allowed, volume
        for container in containers(pod):
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["readOnlyRootFilesystem"] is True
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert {"requests", "limits"} <= set(container["resources"])


@pytest.mark.parametrize("case", CASES)
def test_labels_and_selectors_fit(case, objects):
    documents = objects[case]
    labels = {name: pod["metadata"]["labels"] for name, pod in pods(documents).items()}
    for document in documents:
        own = document["metadata"]["labels"]
        for key in ("name", "instance", "component", "version", "managed-by", "part-of"):
            assert f"app.kubernetes.io/{key}" in own, document["metadata"]["name"]
        assert own["app.kubernetes.io/version"] == VERSION
        spec = document.get("spec", {})
        selector = {
            "Service": lambda spec=spec: spec["selector"],
            "NetworkPolicy": lambda spec=spec: spec["podSelector"]["matchLabels"],
            "StatefulSet": lambda spec=spec: spec["selector"]["matchLabels"],
            "PodDisruptionBudget": lambda spec=spec: spec["selector"]["matchLabels"],
            "ServiceMonitor": lambda spec=spec: spec["selector"]["matchLabels"],
        }.get(document["kind"])
        if selector is not None:
            chosen = {n for n, found in labels.items() if selector().items() <= found.items()}
            component = own["app.kubernetes.io/component"]
            assert len(chosen) == 1, document["metadata"]["name"]
            assert chosen.pop().endswith(component)
    for name, found in of_kind(documents, "StatefulSet").items():
        assert found["spec"]["serviceName"] in of_kind(documents, "Service")
        assert found["spec"]["template"]["spec"]["serviceAccountName"] in of_kind(
            documents, "ServiceAccount"
        )
        assert found["spec"]["replicas"] == 1, name


@pytest.mark.parametrize("case", CASES)
def test_volumes_and_mounts_fit(case, objects):
    for name, found in of_kind(objects[case], "StatefulSet").items():
        spec = found["spec"]["template"]["spec"]
        volumes = {v["name"] for v in spec["volumes"]}
        volumes |= {c["metadata"]["name"] for c in found["spec"].get("volumeClaimTemplates", ())}
        for container in (*spec["initContainers"], *spec["containers"]):
            mounts = [m["name"] for m in container["volumeMounts"]]
            assert len(set(mounts)) == len(mounts)
            assert set(mounts) <= volumes, name
        for volume in spec["volumes"]:
            if "configMap" in volume and case != "open":
                assert volume["configMap"]["name"] in of_kind(objects[case], "ConfigMap")


# Settings and commands ----------------------------------------------------------------------------


def settings(container):
    """What a container's environment says, with what Kubernetes fills in."""
    address = {"POD_IP": "10.1.2.3"}
    return {
        variable["name"]: variable["value"].replace("$(POD_IP)", address["POD_IP"])
        for variable in container["env"]
        if "value" in variable
    }


@pytest.mark.parametrize("case", ["coordinator", "whole", "open"])
def test_the_coordinators_settings_are_read_by_the_coordinator(
    case, objects, tmp_path, monkeypatch
):
    (tmp_path / "coordinator.toml").write_text('host_names = ["coord.example.org"]\n')
    (name,) = [n for n in pods(objects[case]) if n.endswith("-coordinator")]
    for container in containers(pods(objects[case])[name]):
        found = settings(container)
        for key, value in found.items():
            monkeypatch.setenv(key, value)
        config = CoordinatorConfig.load(tmp_path)
        assert config.probes_listen == "10.1.2.3:7445"
        assert config.host_names == ("coord.example.org", "10.0.0.1", "localhost", "127.0.0.1")
        assert config.dial_coordinator == "coord.example.org:7443"
        assert config.dial_enrolment == "coord.example.org:7444"
        if case == "whole":
            assert config.adapters_url == "s3://bucket/oncology"
            assert str(config.probes_certificate_file) == "/etc/chorale/probes-tls/tls.crt"
    # A password is never a value of the chart's.
    secrets = {
        variable["name"]: variable["valueFrom"]["secretKeyRef"]["name"]
        for variable in container["env"]
        if "secretKeyRef" in variable.get("valueFrom", {})
    }
    wanted = {"CHORALE_COORDINATOR_DATABASE_URL": "database"} if case == "whole" else {}
    assert secrets == wanted


@pytest.mark.parametrize("case", ["silo", "whole"])
def test_the_silos_settings_are_read_by_the_silo(case, objects, tmp_path, monkeypatch):
    (tmp_path / "silo.toml").write_text("")
    (name,) = [n for n in pods(objects[case]) if n.endswith("-silo")]
    for container in containers(pods(objects[case])[name]):
        for key, value in settings(container).items():
            monkeypatch.setenv(key, value)
        # The model is in the image or on a claim, and not here.
        monkeypatch.setenv("CHORALE_SILO_BASE_MODEL", str(ROOT / "lab" / "base_model"))
        config = SiloConfig.load(tmp_path)
        assert config.probes_listen == "10.1.2.3:7446"
        assert config.families() == ("craft",)
    if case == "whole":
        assert str(config.policy_file) == "/etc/chorale/policy/policy.toml"
        kept = of_kind(objects[case], "ConfigMap")[f"{name}-policy"]["data"]["policy.toml"]
        assert Policy.parse(kept.encode()) == Policy.parse(POLICY.encode())
        (silo,) = pods(objects[case])[name]["spec"]["containers"]
        assert silo["resources"]["limits"] == {"nvidia.com/gpu": 2, "memory": "8Gi"}


def test_ipv6_addresses_are_in_brackets(objects):
    for pod in pods(objects["ipv6"]).values():
        for container in containers(pod):
            listening = [v["value"] for v in container.get("env", ()) if "LISTEN" in v["name"]]
            bracketed = r"\[(\$\(POD_IP\)|::)\]:744[3456]"
            assert all(re.fullmatch(bracketed, found) for found in listening), listening


@pytest.mark.parametrize("case", CASES)
def test_every_command_exists(case, objects):
    for pod in pods(objects[case]).values():
        for container in containers(pod):
            words = container["command"]
            if words[0] == "python":
                assert words[1:3] == ["-IS", "/opt/chorale/share/health.py"]
            elif words[0] == "sh":
                script, _, *given = words[2:]
                (called,) = re.findall(r"(?:exec |^)(chorale.*?)(?: <\S+| && .*)?$", script)
                given = given if '"$@"' in called else ()
                require_command([*shlex.split(called.replace('"$@"', "")), *given])
            else:
                require_command(words)


def test_every_command_of_the_notes_exists(answers, objects):
    for case in ("coordinator", "silo", "whole"):
        (notes,) = [t for n, t in answers[case]["templates"].items() if n.endswith("NOTES.txt")]
        calls = r"(?m)kubectl .* exec (?:-i )?(\S+)-0 -- (chorale.*?)(?: [<>]\S+)?$"
        found = re.findall(calls, notes)
        assert found
        for name, line in found:
            assert name in pods(objects[case])
            require_command(line.split())
        assert f"-n {NAMESPACE}" in notes


# Who reaches whom ---------------------------------------------------------------------------------


def test_only_who_is_named_reaches_the_second_port(objects):
    for case, named in (("coordinator", 0), ("silo", 0), ("whole", 1)):
        for policy in of_kind(objects[case], "NetworkPolicy").values():
            assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
            rules = {
                port["port"]: rule.get("from")
                for rule in policy["spec"]["ingress"]
                for port in rule["ports"]
            }
            (second,) = set(rules) & {7445, 7446}
            ours, *others = rules[second]
            assert ours["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "test"
            assert len(others) == named
            if second == 7446:
                assert set(rules) == {7446}, "nobody connects to a silo"


def test_metrics_are_published_by_no_other_service(objects):
    for case in ("coordinator", "whole"):
        for name, service in of_kind(objects[case], "Service").items():
            ports = {port["port"] for port in service["spec"]["ports"]}
            if name.endswith("-probes"):
                assert service["spec"]["clusterIP"] == "None"
            else:
                assert ports == {7443, 7444}


# Monitoring ---------------------------------------------------------------------------------------


def test_the_rules_are_those_of_deploy_prometheus(objects, tmp_path):
    found = of_kind(objects["whole"], "PrometheusRule")
    assert len(found) == 2
    for name, rule in found.items():
        part = name.rpartition("-")[2]
        shipped = ROOT / "deploy" / "prometheus" / "rules" / f"{part}.yml"
        assert rule["spec"] == yaml.safe_load(shipped.read_text())
        assert rule["metadata"]["labels"]["release"] == "monitoring"
        path = tmp_path / f"{part}.yml"
        path.write_text(yaml.safe_dump(rule["spec"]))
        if shutil.which("promtool"):
            code, said = promtool("check", "rules", path)
            assert code == 0, said


def test_the_dashboards_are_those_of_deploy_grafana(objects):
    found = {
        name: one
        for name, one in of_kind(objects["whole"], "ConfigMap").items()
        if name.endswith("-dashboard")
    }
    assert len(found) == 2
    for name, part in (("coordinator", "federation"), ("silo", "silo")):
        one = found[f"{RELEASE}-chorale-{name}-dashboard"]
        shipped = ROOT / "deploy" / "grafana" / "dashboards" / f"{part}.json"
        assert json.loads(one["data"][f"chorale-{part}.json"]) == json.loads(shipped.read_text())
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert one["metadata"]["annotations"] == {"grafana_folder": "Chorale"}


def test_a_backup_sees_the_coordinators_volume_and_settings(objects):
    (job,) = of_kind(objects["whole"], "CronJob").values()
    spec = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    claims = {
        v["name"]: v["persistentVolumeClaim"]["claimName"]
        for v in spec["volumes"]
        if "persistentVolumeClaim" in v
    }
    assert claims == {"data": "kept", "backups": "backups"}
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in spec["volumes"]}
    (serving,) = pods(objects["whole"])[f"{RELEASE}-chorale-coordinator"]["spec"]["containers"]
    assert container["env"] == serving["env"]
    assert container["envFrom"] == serving["envFrom"]
    assert container["command"][-1] == "7"
    (term,) = spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    labels = pods(objects["whole"])[f"{RELEASE}-chorale-coordinator"]["metadata"]["labels"]
    assert term["labelSelector"]["matchLabels"].items() <= labels.items()


def test_what_is_scraped_has_the_name_that_the_rules_know(objects):
    for name, monitor in of_kind(objects["whole"], "ServiceMonitor").items():
        (endpoint,) = monitor["spec"]["endpoints"]
        (job,) = endpoint["relabelings"]
        assert job == {"targetLabel": "job", "replacement": f"chorale-{name.rpartition('-')[2]}"}
        assert endpoint["scheme"] == "https"
        services = of_kind(objects["whole"], "Service")
        assert any(
            p["name"] == endpoint["port"] for p in services[f"{name}-probes"]["spec"]["ports"]
        )


def test_probes_speak_what_the_port_speaks(objects):
    for case, scheme in (("coordinator", "HTTP"), ("whole", "HTTPS")):
        for found in of_kind(objects[case], "StatefulSet").values():
            (container,) = found["spec"]["template"]["spec"]["containers"]
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                assert container[probe]["httpGet"]["scheme"] == scheme
                assert container[probe]["httpGet"]["port"] == "probes"
        for pod in of_kind(objects[case], "Pod").values():
            assert pod["spec"]["containers"][0]["command"][-1].startswith(f"{scheme.lower()}://")
