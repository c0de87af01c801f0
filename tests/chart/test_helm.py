"""The chart as helm renders it: linted, parsed, and held to rules that cover every value set."""

import importlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from tests.chart.support import CHART, KUBE_VERSION, Render, all_alerts, documents, pod_specs, run
from tools.paths import repo_root

VALUE_SETS = ("default", *sorted(path.name for path in (CHART / "ci").glob("*-values.yaml")))
CLUSTER_SCOPED = ("ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition")


def arguments(value_set: str) -> list[str]:
    return [] if value_set == "default" else ["--values", str(CHART / "ci" / value_set)]


@pytest.fixture(params=VALUE_SETS)
def manifests(request: pytest.FixtureRequest, render: Render) -> list[dict[str, Any]]:
    return render(*arguments(request.param))


@pytest.mark.parametrize("value_set", VALUE_SETS)
def test_lint_finds_nothing(helm: Path, value_set: str) -> None:
    done = run(helm, "lint", "--strict", CHART, "--kube-version", KUBE_VERSION, *arguments(value_set))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout


def test_every_object_is_named_once_and_labelled(manifests: list[dict[str, Any]]) -> None:
    seen = [(m["kind"], m["metadata"].get("namespace"), m["metadata"]["name"]) for m in manifests]
    assert len(seen) == len(set(seen))
    for manifest in manifests:
        assert manifest["metadata"]["labels"]["app.kubernetes.io/part-of"] == "structuredllm"
        if manifest["kind"] not in CLUSTER_SCOPED:
            assert manifest["metadata"].get("namespace"), manifest["metadata"]["name"]


def test_no_rule_has_a_wildcard_or_reads_secrets(manifests: list[dict[str, Any]]) -> None:
    rules = [rule for m in manifests if m["kind"] in ("Role", "ClusterRole") for rule in m["rules"]]
    for rule in rules:
        assert all("*" not in word for words in rule.values() for word in words), rule
        assert "secrets" not in rule["resources"], rule


def test_pods_meet_the_restricted_standard(manifests: list[dict[str, Any]]) -> None:
    for name, spec in pod_specs(manifests).items():
        context = spec["securityContext"]
        assert context["runAsNonRoot"] is True, name
        assert context["runAsUser"] == 65532, name
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert "automountServiceAccountToken" in spec, name
        for container in spec["containers"] + spec.get("initContainers", []):
            inner = container["securityContext"]
            assert inner["allowPrivilegeEscalation"] is False, name
            assert inner["readOnlyRootFilesystem"] is True, name
            assert inner["capabilities"] == {"drop": ["ALL"]}, name
            assert container["resources"]["requests"], name
            assert container["resources"]["limits"]["memory"], name
            assert "tmp" in {mount["name"] for mount in container["volumeMounts"]}, name


def test_selectors_match_their_pods_and_never_name_the_chart(manifests: list[dict[str, Any]]) -> None:
    for manifest in manifests:
        if manifest["kind"] == "Deployment":
            selector = manifest["spec"]["selector"]["matchLabels"]
            labels = manifest["spec"]["template"]["metadata"]["labels"]
            assert selector.items() <= labels.items()
            assert "helm.sh/chart" not in selector
            assert "app.kubernetes.io/version" not in selector


def test_named_ports_of_probes_services_and_monitors_exist(manifests: list[dict[str, Any]]) -> None:
    ports = {
        name.rsplit("-", 1)[-1]: {port["name"] for c in spec["containers"] for port in c.get("ports", [])}
        for name, spec in pod_specs(manifests).items()
        if name.startswith("Deployment/")
    }
    for name, spec in pod_specs(manifests).items():
        for container in spec["containers"]:
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                if probe in container:
                    assert container[probe]["httpGet"]["port"] in ports[name.rsplit("-", 1)[-1]]
    for manifest in manifests:
        component = manifest["metadata"]["labels"]["app.kubernetes.io/component"]
        if manifest["kind"] == "Service":
            assert {p["targetPort"] for p in manifest["spec"]["ports"]} <= ports[component]
        if manifest["kind"] == "PodMonitor" and component != "engines":
            assert {e["port"] for e in manifest["spec"]["podMetricsEndpoints"]} <= ports[component]


def test_namespaced_mode_is_free_of_cluster_scoped_objects(render: Render) -> None:
    manifests = render(*arguments("namespaced-values.yaml"))
    assert not [m["kind"] for m in manifests if m["kind"] in CLUSTER_SCOPED]
    for part in ("operator", "gateway"):
        (binding,) = [
            m for m in manifests if m["kind"] == "RoleBinding" and m["metadata"]["name"].endswith(part)
        ]
        assert binding["metadata"]["namespace"] == "team-a"
        assert binding["subjects"][0]["namespace"] == "sys"


def test_roles_give_the_same_rights_in_both_modes(render: Render) -> None:
    cluster = {m["metadata"]["name"]: m["rules"] for m in render() if m["kind"] == "ClusterRole"}
    scoped = render("--set", "scope.namespaces={team-a}")
    roles = {m["metadata"]["name"]: m["rules"] for m in scoped if m["kind"] == "Role"}
    assert roles.keys() == {"structuredllm-operator", "structuredllm-gateway"}
    for name, rules in roles.items():
        assert rules == cluster[f"sys-{name}"]


def test_operator_has_the_rights_that_its_readme_asks_for(render: Render) -> None:
    """The README's table is written beside the code that makes the calls."""
    readme = (repo_root() / "operator" / "README.md").read_text()
    wanted = {}
    for line in readme.split("## RBAC", 1)[1].splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        if line.startswith("|") and len(cells) == 3 and cells[0] != "API group" and "---" not in cells[0]:
            verbs = re.sub(r"\(.*\)", "", cells[2])
            for resource in cells[1].split(", "):
                wanted[cells[0].strip('"'), resource] = {verb.strip() for verb in verbs.split(",")}
    assert wanted
    (role,) = [m for m in render() if m["metadata"]["name"] == "sys-structuredllm-operator" and "rules" in m]
    given = {
        (rule["apiGroups"][0], resource): set(rule["verbs"])
        for rule in role["rules"]
        for resource in rule["resources"]
    }
    assert given == wanted


@pytest.mark.parametrize(
    ("part", "prefix"), [("operator", "STRUCTUREDLLM_OPERATOR_"), ("gateway", "STRUCTUREDLLM_GATEWAY_")]
)
def test_settings_given_to_a_part_exist_in_its_code(render: Render, part: str, prefix: str) -> None:
    """A variable with a wrong name would be ignored in silence."""
    module = importlib.import_module(f"structuredllm_{part}.settings")
    known = set(_setting_names(module.Settings, prefix))
    container = pod_specs(render())[f"Deployment/structuredllm-{part}"]["containers"][0]
    names = {e["name"] for e in container["env"]}
    assert names
    assert names <= known


def _setting_names(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield f"{prefix}{name.upper()}"
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _setting_names(inner, f"{prefix}{name.upper()}__")


def test_gateway_only_reads(render: Render) -> None:
    (role,) = [
        m
        for m in render()
        if m["kind"] == "ClusterRole" and m["metadata"]["name"] == "sys-structuredllm-gateway"
    ]
    verbs = {verb for rule in role["rules"] for verb in rule["verbs"]}
    assert verbs == {"get", "list", "watch"}


def test_crd_is_the_generated_one_plus_the_keep_annotation(render: Render) -> None:
    source = yaml.safe_load((CHART / "files/crds/structuredllms.structuredllm.io.yaml").read_text())
    (crd,) = [m for m in render() if m["kind"] == "CustomResourceDefinition"]
    assert crd["spec"] == source["spec"]
    assert crd["metadata"]["name"] == source["metadata"]["name"]
    assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    (loose,) = [m for m in render("--set", "crds.keep=false") if m["kind"] == "CustomResourceDefinition"]
    assert "helm.sh/resource-policy" not in loose["metadata"].get("annotations", {})


def test_plain_rules_and_prometheusrule_agree_by_default(render: Render) -> None:
    """Whoever loads files/rules by hand gets what the chart installs."""
    (rule,) = [
        m for m in render("--set", "monitoring.prometheusRule.enabled=true") if m["kind"] == "PrometheusRule"
    ]
    rendered = {r["alert"]: r for group in rule["spec"]["groups"] for r in group["rules"]}
    plain = all_alerts()
    assert rendered.keys() == plain.keys()
    for name, alert in plain.items():
        assert rendered[name]["expr"].split() == alert["expr"].split(), name
        assert {k: v for k, v in rendered[name].items() if k != "expr"} == {
            k: v for k, v in alert.items() if k != "expr"
        }


def test_alerts_can_be_tuned_and_switched_off(render: Render) -> None:
    base = "monitoring.prometheusRule"
    manifests = render(
        *("--set", f"{base}.enabled=true", "--set", f"{base}.alerts.StructuredLLMOperatorDown.enabled=false"),
        *("--set", f"{base}.alerts.StructuredLLMGrammarRejects.threshold=0.25"),
        *("--set", f"{base}.alerts.StructuredLLMGateFailing.for=9m"),
        *("--set", f"{base}.runbookBaseUrl=https://wiki/"),
    )
    (rule,) = [m for m in manifests if m["kind"] == "PrometheusRule"]
    rendered = {r["alert"]: r for group in rule["spec"]["groups"] for r in group["rules"]}
    assert "StructuredLLMOperatorDown" not in rendered
    assert rendered["StructuredLLMGrammarRejects"]["expr"].rstrip().endswith("> 0.25")
    assert rendered["StructuredLLMGateFailing"]["for"] == "9m"
    url = rendered["StructuredLLMGateFailing"]["annotations"]["runbook_url"]
    assert url == "https://wiki/StructuredLLMGateFailing.md"


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("operator.replicas=2", "replicas"),
        ("gateway.replica=3", "replica"),
        ("gateway.image.digest=latest", "digest"),
        ("scope.namespaces={Bad_Name}", "namespaces"),
        ("monitoring.prometheusRule.alerts.Unknown.enabled=false", "Unknown"),
    ],
)
def test_wrong_values_are_refused_by_name(helm: Path, setting: str, named: str) -> None:
    done = run(helm, "template", "structuredllm", CHART, "--kube-version", KUBE_VERSION, "--set", setting)
    assert done.returncode != 0
    assert named in done.stderr


def test_notes_give_a_resource_that_the_crd_knows(helm: Path, tmp_path: Path) -> None:
    """Every field of the first resource in NOTES.txt exists in the CRD, so pasting it works."""
    notes = _notes(helm, tmp_path)
    (resource,) = documents(notes.split("<<'YAML'\n", 1)[1].split("\nYAML\n", 1)[0])
    crd = yaml.safe_load((CHART / "files/crds/structuredllms.structuredllm.io.yaml").read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert resource["kind"] == crd["spec"]["names"]["kind"]
    unknown = list(_unknown(resource["spec"], schema["properties"]["spec"], "spec"))
    assert not unknown
    for command in ("kubectl port-forward", "curl ", "kubectl describe", "helm test"):
        assert command in notes


def _notes(helm: Path, scratch: Path) -> str:
    """Render NOTES.txt; `helm template` leaves it out, so a copy of the chart makes it a manifest."""
    chart = scratch / "structuredllm"
    shutil.copytree(CHART, chart)
    (chart / "templates" / "NOTES.txt").rename(chart / "files" / "notes.tpl")
    (chart / "templates" / "notes.yaml").write_text(
        'kind: Notes\ntext: {{ tpl (.Files.Get "files/notes.tpl") . | toJson }}\n'
    )
    done = run(
        helm, *("template", "structuredllm", chart, "--namespace", "sys", "--kube-version", KUBE_VERSION)
    )
    assert done.returncode == 0, done.stderr
    (document,) = [d for d in documents(done.stdout) if d["kind"] == "Notes"]
    return str(document["text"])


def _unknown(value: Any, schema: dict[str, Any], path: str) -> list[str]:
    if not isinstance(value, dict) or "properties" not in schema:
        return []
    found = [f"{path}.{key}" for key in value if key not in schema["properties"]]
    found += [f"{path}.{key}" for key in schema.get("required", []) if key not in value]
    for key, inner in value.items():
        found += _unknown(inner, schema["properties"].get(key, {}), f"{path}.{key}")
    return found
