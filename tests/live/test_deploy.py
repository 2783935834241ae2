"""The files of deploy/: their queries match existing metrics, and what they run works."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from process import CONFIG, Process, make_key
from prometheus_client.parser import text_string_to_metric_families as parse

from bilinq.client import Client
from bilinq.live.settings import ServiceSettings, load

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "bilinq.json").read_text(encoding="utf-8"))
ALERTS: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
UNIT = DEPLOY / "systemd" / "bilinq.service"

PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]] + [rule["expr"] for rule in RULES]

OWN = {"up"}
"""Metrics that Prometheus adds itself."""
ADDED = {"job", "instance"}
"""Labels that Prometheus adds."""
WORDS = {"sum", "max", "min", "by", "on", "and", "or", "rate", "increase", "time", "histogram_quantile"}
NAME = re.compile(r"[a-zA-Z_:][\w:]*")


class Samples:
    """The names of all samples of a service in use, with their labels and the values of these."""

    def __init__(self, text: str) -> None:
        self.labels: dict[str, dict[str, set[str]]] = {}
        for family in parse(text):
            for one in family.samples:
                known = self.labels.setdefault(one.name, {})
                for name, value in one.labels.items():
                    known.setdefault(name, set()).add(value)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """The metrics of a service after it has served a job and some requests."""
    folder = tmp_path_factory.mktemp("deploy")
    database = f"sqlite:///{folder}/live.db"
    key = make_key(database, "admin")
    with Process(folder, database, "--backlog", "1") as process, process.client(key) as http:
        with Client(process.address, key) as client:
            server = client.register("gpu").id
            client.submit("short")
            lease = client.lease(server)
            assert lease is not None
            client.finish(lease.lease, lease.fence, 0.5)
        assert http.post("/v1/jobs", json={"jobs": [{"class": "short"}] * 2}).status_code == 429
        return Samples(http.get("/metrics").text)


def used(query: str) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Yield the metrics of a query with their matchers: label, operator, value."""
    bare = re.sub(r"\b(?:by|on) \([^)]*\)|\[[^\]]*\]", "", query)
    for name, inside in re.findall(r"(?<![\w.])([a-zA-Z_:][\w:]*)(\{[^}]*\})?", bare):
        if name not in WORDS:
            yield name, re.findall(r'(\w+)(=~|!=|!~|=)"([^"]*)"', inside)


def grouped(query: str) -> set[str]:
    """Return the labels by which a query groups."""
    return {label for labels in re.findall(r"\b(?:by|on) \(([^)]*)\)", query) for label in NAME.findall(labels)}


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_uses_existing_metrics(query: str, samples: Samples) -> None:
    found = list(used(query))
    assert found
    assert query.count("(") == query.count(")")
    labels = set(ADDED)
    for name, matchers in found:
        assert name in samples.labels or name in OWN, name
        known = samples.labels.get(name, {})
        labels |= set(known)
        for label, operator, value in matchers:
            assert label in known or label in ADDED, f"{name} has no label {label}"
            if label in known and label != "status":
                for one in value.split("|") if operator == "=~" else [value]:
                    assert one in known[label], f"{label} of {name} is never {one}"
    assert grouped(query) <= labels


def test_queries_that_are_wrong_are_noticed(samples: Samples) -> None:
    for wrong in (
        "sum(bilinq_jobs_waiting)",
        'bilinq_servers{state="asleep"}',
        'bilinq_servers{colour="red"}',
        "sum by (colour) (bilinq_servers)",
        "sum(bilinq_leader",
    ):
        with pytest.raises(AssertionError):
            test_every_query_uses_existing_metrics(wrong, samples)


def test_most_metrics_are_used(samples: Samples) -> None:
    queried = {name for query in QUERIES for name, _ in used(query)}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in samples.labels}
    seen = {re.sub(r"_(bucket|sum|count)$", "", name) for name in queried}
    unseen = {"bilinq_build_info", "bilinq_epoch", "bilinq_jobs_leased", "bilinq_learner_eigenvalue", "bilinq_ready"}
    unseen |= {"bilinq_reward_weight", "bilinq_rewards_awaited", "process_start_time_seconds"}
    assert families - seen == unseen


def test_the_dashboard_is_complete() -> None:
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    assert [one["name"] for one in BOARD["templating"]["list"]] == ["source", "job"]
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["datasource"] == {"type": "prometheus", "uid": "${source}"}
        assert all('job="$job"' in target["expr"] for target in panel["targets"])
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24


def test_every_alert_says_what_is_wrong_and_is_in_the_manual() -> None:
    manual = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert len({rule["alert"] for rule in RULES}) == len(RULES) >= 12
    for rule in RULES:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"].endswith(".")
        assert f"| `{rule['alert']}` |" in manual
        assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= grouped(rule["expr"]) | ADDED


def test_prometheus_scrapes_the_default_address() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    (job,) = config["scrape_configs"]
    assert job["job_name"] == "bilinq"
    assert config["rule_files"] == ["alerts.yml"]
    assert job["static_configs"] == [{"targets": [f"127.0.0.1:{ServiceSettings().port}"]}]
    assert job.get("metrics_path", "/metrics") == "/metrics"


def unit() -> dict[str, list[str]]:
    """Return the section [Service] of the unit; a name may occur several times."""
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text(encoding="utf-8").partition("[Service]")[2].partition("[Install]")[0].splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def test_the_unit_restricts_the_service() -> None:
    service = unit()
    assert service["User"] == ["bilinq"]
    for name in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices", "RestrictNamespaces"):
        assert service[name] == ["yes"]
    assert (service["ProtectSystem"], service["CapabilityBoundingSet"]) == (["strict"], [""])
    assert float(service["TimeoutStopSec"][0]) > 30.0  # requests may take so long to end
    assert "MemoryDenyWriteExecute" not in service
    assert service["LimitCORE"] == ["0"]  # a core file would contain keys and payloads
    assert {"MemoryMax", "TasksMax", "LimitNOFILE"} <= service.keys()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    text = UNIT.read_text(encoding="utf-8").replace("/opt/bilinq/bin/", f"{Path(sys.executable).parent}/")
    copy = tmp_path / "bilinq.service"
    copy.write_text(re.sub(r"/[^ ]*/bilinq serve", "/bin/true serve", text).replace("=bilinq\n", "=root\n", 2))
    for words in (["verify", "--man=no"], ["security", "--offline=true", "--threshold=20", "--no-pager"]):
        done = subprocess.run(["systemd-analyze", *words, str(copy)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Unknown" not in done.stderr


def test_what_the_unit_starts_serves_and_ends(tmp_path: Path) -> None:
    program, *words = shlex.split(unit()["ExecStart"][0])
    assert (program, words[0]) == ("/opt/bilinq/bin/bilinq", "serve")
    assert words[1:3] == ["--config", "/etc/bilinq/service.toml"]
    database = f"sqlite:///{tmp_path}/bilinq.db"
    with Process(tmp_path, database, *words[3:], settings=CONFIG) as process, process.client() as http:
        assert http.get("/healthz").status_code == 200
        assert process.stop() == 0
        assert json.loads(process.log.read_text().splitlines()[0])["event"] == "serving"


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the container file with their arguments."""
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "Containerfile").read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split()[0], line.partition(" ")[2]) for line in lines]


def test_the_container_is_built_from_existing_files() -> None:
    for name, rest in instructions():
        if name == "COPY" and "--from" not in rest:
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
    locked, own = [rest for name, rest in instructions() if name == "RUN" and "pip install" in rest]
    assert "--require-hashes" in locked and locked.endswith("-r requirements.lock")
    (wheel,) = [rest for name, rest in instructions() if name == "RUN" and "pip wheel" in rest]
    assert "--no-deps" in wheel and wheel.endswith("--wheel-dir /wheels .")
    assert "--no-deps --no-index" in own and own.endswith("/wheels/*.whl")  # all that it needs is in the lock file


COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose" / "compose.yml").read_text(encoding="utf-8"))
POD, NETWORK = yaml.safe_load_all((DEPLOY / "kubernetes.yml").read_text(encoding="utf-8"))
MADE = ("service.toml", "database-url", "database-password")  # files of the composition that the user makes


def known_variables(names: Iterable[str]) -> bool:
    """Tell whether all variables of bilinq among `names` are settings, or files with secrets."""
    known = {f"BILINQ_{name.upper()}" for name in ServiceSettings.__struct_fields__}
    return {name.removesuffix("_FILE") for name in names if name.startswith("BILINQ_")} <= known


def test_the_composition_fits_together() -> None:
    """Its files exist, or its first lines make them; names are defined; only the loopback is open; passwords are files."""
    head = (DEPLOY / "compose" / "compose.yml").read_text(encoding="utf-8").partition("name:")[0]
    assert all(name in head for name in MADE)
    assert head.index("keys create") < head.index("up -d")  # without a key every request is refused
    services = COMPOSE["services"]
    for service in services.values():
        assert set(service.get("depends_on", ())) <= services.keys()
        assert set(service.get("secrets", ())) <= COMPOSE["secrets"].keys()
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        assert known_variables(service.get("environment", ()))
        for place in (volume.partition(":")[0] for volume in service.get("volumes", ())):
            made = place in COMPOSE["volumes"] or place.removeprefix("./") in MADE
            assert made or (DEPLOY / "compose" / place).exists(), place
    assert (ROOT / services["service"]["build"]["dockerfile"]).exists()
    assert "password" not in str([service.get("environment") for service in services.values()]).replace("-password", "")
    scrape = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    assert scrape[0]["static_configs"][0]["targets"] == ["service:8000"]
    assert "reverse_proxy service:8000" in (DEPLOY / "compose" / "Caddyfile").read_text(encoding="utf-8")


def test_the_pod_runs_unprivileged_with_the_probes_of_the_service() -> None:
    spec = POD["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsUser"] == 10001 and container["securityContext"]["readOnlyRootFilesystem"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert {container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe")} == {"/healthz"}
    assert known_variables(one["name"] for one in container["env"])
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in spec["volumes"]}
    assert NETWORK["spec"]["selector"] == POD["spec"]["template"]["metadata"]["labels"]


CHART = DEPLOY / "helm"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
ACTION = re.compile(r'{{ (?:required "(?P<rule>[^"]+)" )?\.(?P<place>\w+)\.(?P<name>\w+)(?: \| (?P<function>\w+))? }}')


def rendered(release: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the objects of the chart, as Helm renders them; knows only the few actions that the chart has."""
    known: dict[str, dict[str, Any]] = {"Values": values, "Release": {"Name": release}}
    functions: dict[str | None, Callable[[Any], str]]
    functions = {"toJson": json.dumps, "sha256sum": lambda text: sha256(text.encode()).hexdigest(), None: str}

    def replaced(action: re.Match[str]) -> str:
        value = known[action["place"]][action["name"]]
        assert value or not action["rule"], action["rule"]
        return functions[action["function"]](value)

    text = ACTION.sub(replaced, (CHART / "templates" / "bilinq.yaml").read_text(encoding="utf-8"))
    assert "{{" not in text
    return list(yaml.safe_load_all(text))


def test_the_chart_is_the_pod_with_the_settings_of_the_user() -> None:
    settings, pod, network = rendered("bilinq", VALUES | {"settings": CONFIG})
    noted = pod["spec"]["template"]["metadata"].pop("annotations")
    assert (pod, network) == (POD, NETWORK)
    assert settings["metadata"]["name"] == "bilinq" and settings["data"]["service.toml"] == CONFIG
    changed = rendered("bilinq", VALUES | {"settings": f"{CONFIG}# changed"})[1]
    assert changed["spec"]["template"]["metadata"]["annotations"] != noted
    with pytest.raises(AssertionError, match="--set-file settings="):
        rendered("bilinq", VALUES)


def test_each_value_of_the_chart_changes_what_it_names() -> None:
    made = {"image": "here/bilinq:2", "replicas": 3, "databaseSecret": "db", "settings": "port = 1",
            "resources": {"limits": {"memory": "4Gi"}}}  # fmt: skip
    assert made.keys() == VALUES.keys()
    settings, pod, network = rendered("other", made)
    assert {one["metadata"]["name"] for one in (settings, pod, network)} == {"other"}
    spec = pod["spec"]["template"]["spec"]
    assert (pod["spec"]["replicas"], spec["containers"][0]["image"]) == (3, "here/bilinq:2")
    assert spec["containers"][0]["resources"] == made["resources"]
    sources = {one["name"]: one for one in spec["volumes"]}
    assert sources["secrets"]["secret"]["secretName"] == "db" and sources["settings"]["configMap"]["name"] == "other"
    assert network["spec"]["selector"] == pod["spec"]["template"]["metadata"]["labels"] == {"app": "other"}


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["version"] == chart["appVersion"] == version("bilinq")


def test_the_container_runs_as_an_unprivileged_user() -> None:
    final = instructions()[max(k for k, (name, _) in enumerate(instructions()) if name == "FROM") :]
    users = [rest for name, rest in final if name == "USER"]
    assert users == ["10001:10001"]
    assert final.index(("USER", "10001:10001")) < final.index(("ENTRYPOINT", '["bilinq"]'))
    given = dict(word.split("=", 1) for name, rest in final if name == "ENV" for word in rest.split())
    settings = load(environment={name: value for name, value in given.items() if name.startswith("BILINQ_")})
    assert (settings.port, settings.log_format) == (8000, "json")
    assert settings.database == f"sqlite:///{dict(final)['VOLUME']}/bilinq.db"
    known = {f"BILINQ_{name.upper()}" for name in ServiceSettings.__struct_fields__}
    assert {name for name in given if name.startswith("BILINQ_")} <= known


def test_the_container_has_a_health_check(tmp_path: Path) -> None:
    (check,) = [rest for name, rest in instructions() if name == "HEALTHCHECK"]
    program, *words = json.loads(check[check.index("[") :])
    assert program == "python"
    with Process(tmp_path, f"sqlite:///{tmp_path}/live.db") as process:
        address = process.address.removeprefix("http://")
        here = [sys.executable, *(word.replace("127.0.0.1:8000", address) for word in words)]
        assert subprocess.run(here, capture_output=True, check=False).returncode == 0
        assert process.stop() == 0
    assert subprocess.run(here, capture_output=True, check=False).returncode != 0
