"""Settings: options over environment over file, and a clear line for whatever is wrong."""

import time
from pathlib import Path
from typing import Any

import pytest

from bilinq.errors import BadInput
from bilinq.live.settings import RewardBounds, ServiceSettings, load
from bilinq.live.wire.access import NamespaceInfo
from bilinq.live.wire.messages import JobClassInfo, ServerClassInfo

DESIGN = """
target_wait = 2.0                 # seconds; or V = 50.0
slot = 0.05                       # seconds
lease = 30.0                      # seconds
reward = { low = 0.0, high = 1.0 }
[[job_class]]
name = "short"
features = [1.0, 0.2]
weight = 1.0
holding_cost = 1.0
[[server_class]]
name = "gpu"
features = [0.3, 1.0]
"""


def read(folder: Path, text: str, environment: dict[str, str] | None = None, **options: Any) -> ServiceSettings:
    file = folder / "service.toml"
    file.write_text(text)
    return load(file, options, environment or {})


def test_the_file_of_the_design_is_read(tmp_path: Path) -> None:
    found = read(tmp_path, DESIGN)
    assert found.job_class == (JobClassInfo(name="short", features=[1.0, 0.2]),)
    assert found.server_class == (ServerClassInfo(name="gpu", features=[0.3, 1.0]),)
    assert (found.target_wait, found.V, found.slot, found.lease) == (2.0, None, 0.05, 30.0)


def test_without_anything_there_are_defaults() -> None:
    found = load(environment={})
    assert found == ServiceSettings()
    assert (found.database, found.host, found.port) == ("sqlite:///bilinq.db", "127.0.0.1", 8000)
    assert found.target_wait == 2.0


def test_options_win_over_environment_over_file(tmp_path: Path) -> None:
    text = "port = 1\nslot = 0.1\nlease = 5\nreward = { low = -1.0, high = 2.0 }"
    found = read(
        tmp_path, text, {"BILINQ_PORT": "2", "BILINQ_SLOT": "0.2", "BILINQ_REWARD_HIGH": "4"}, port=3, gamma=None
    )
    assert (found.port, found.slot, found.lease, found.gamma) == (3, 0.2, 5.0, 1.2)
    assert found.reward == RewardBounds(-1.0, 4.0)


def test_the_environment_gives_every_kind_of_value() -> None:
    found = load(
        environment={
            "BILINQ_DATABASE": "sqlite:///x.db", "BILINQ_WORK_CONSERVING": "true", "BILINQ_RETENTION": "3600",
            "BILINQ_MAX_BODY": "2048", "BILINQ_SEED": "7", "BILINQ_URL": "of the client", "BILINQ_ELSE": "not ours",
        }
    )  # fmt: skip
    assert found == ServiceSettings(
        database="sqlite:///x.db", work_conserving=True, retention=3600.0, max_body=2048, seed=7
    )


def test_the_file_may_be_named_in_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("port = 4")
    assert load(environment={"BILINQ_CONFIG": str(file)}).port == 4
    assert load(environment={"BILINQ_CONFIG": ""}).port == 8000


def test_secrets_may_be_in_files_of_their_own(tmp_path: Path) -> None:
    """As credentials of systemd and secrets of containers are."""
    (tmp_path / "database").write_text("postgresql://u:hidden@h/n\n")
    (tmp_path / "key").write_text("bq_secret\n")
    given = {"BILINQ_DATABASE_FILE": f"{tmp_path}/database", "BILINQ_BASELINE_KEY_FILE": f"{tmp_path}/key"}
    found = read(tmp_path, 'database = "sqlite:///of-the-file.db"', given)
    assert (found.database, found.baseline_key) == ("postgresql://u:hidden@h/n", "bq_secret")
    assert (
        load(options={"database": "sqlite:///o.db"}, environment=given | {"BILINQ_DATABASE_FILE": "/no/such"}).database
        == "sqlite:///o.db"
    )
    assert load(environment={"BILINQ_DATABASE_FILE": ""}).database == ServiceSettings().database


@pytest.mark.parametrize(
    ("content", "also", "message"),
    [
        (None, {}, "BILINQ_DATABASE_FILE must name a file that can be read; .*/database: No such file"),
        (b" \n", {}, "BILINQ_DATABASE_FILE must name a file that is not empty; got .*/database"),
        (b"\xff", {}, "BILINQ_DATABASE_FILE must name a file with UTF-8 text"),
        (
            b"sqlite:///hidden.db",
            {"BILINQ_DATABASE": "sqlite:///x.db"},
            "BILINQ_DATABASE and BILINQ_DATABASE_FILE exclude",
        ),
    ],
)
def test_errors_in_files_of_secrets_are_reported(
    tmp_path: Path, content: bytes | None, also: dict[str, str], message: str
) -> None:
    if content is not None:
        (tmp_path / "database").write_bytes(content)
    with pytest.raises(BadInput, match=message) as caught:
        load(environment={"BILINQ_DATABASE_FILE": f"{tmp_path}/database"} | also)
    assert "hidden" not in str(caught.value)


def test_V_replaces_a_target_wait_of_lower_precedence(tmp_path: Path) -> None:
    found = read(tmp_path, "target_wait = 3.0", {"BILINQ_V": "50"})
    assert (found.V, found.target_wait) == (50.0, None)
    found = read(tmp_path, "V = 3.0", {"BILINQ_V": "50"}, target_wait=1.0)
    assert (found.V, found.target_wait) == (None, 1.0)


CLASS = '[[job_class]]\nname = "a"\nfeatures = [1.0]\n'


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("prot = 1", ["service.toml: unknown key 'prot'", "known are database, host, port"]),
        ("port = ", ["service.toml: is not valid TOML"]),
        ('port = "1"', ["service.toml: port: expected int, got str; got '1'"]),
        ("port = 70000", ["port: expected int <= 65535; got 70000"]),
        ("slot = 0", ["slot: expected float >= 0.001; got 0"]),
        ("target_wait = inf", ["target_wait: expected float <= 1000000000.0; got inf"]),
        ("target_wait = nan", ["target_wait: expected float >= 1e-06; got nan"]),
        ("target_wait = 1.0\nV = 2.0", ["target_wait and V exclude each other"]),
        ("gamma = 1.0", ["gamma: expected float > 1.0"]),
        ("reward = { low = 1.0, high = 1.0 }", ["reward.low must be below reward.high; got low = 1, high = 1"]),
        ("reward = { lo = 1.0 }", ["service.toml: reward.lo: is not a known field"]),
        ("reward = 3", ["service.toml: reward: expected object, got int; got 3"]),
        ('exploration = "all"', ["exploration: must be one of thompson, ucb, none; got 'all'"]),
        (
            'policy = "fifo"',
            ["policy must be one of look-ahead, sabr, max-weight, greedy, random, first-come; got 'fifo'"],
        ),
        ('advertise = "somewhere"', ["advertise: expected str matching"]),
        ("[[job_class]]\nfeatures = [1.0]", ["service.toml: job_class[0].name: is missing"]),
        (CLASS + "wieght = 2", ["service.toml: job_class[0].wieght: is not a known field"]),
        (CLASS + "weight = inf", ["service.toml: job_class[0].weight: expected float <= 1000000000.0"]),
        (f"backlog = {2**63}", ["backlog: expected int <= 9223372036854775807; got 9223372036854775808"]),
        (f"max_attempts = {2**63}", ["max_attempts: expected int <= 9223372036854775807"]),
        (f"max_connections_per_address = {2**63}", ["per_address: expected int <= 9223372036854775807"]),
        (f"seed = {10**400}", ["seed: expected int <= 9223372036854775807; got 1000"]),
        (f"port = {'9' * 5000}", ["service.toml: is not valid TOML"]),
        (
            f'[[namespace]]\nname = "a"\nrunning = {2**63}',
            ["namespace[0].running: expected int <= 9223372036854775807"],
        ),
        (CLASS + f"backlog = {2**63}", ["job_class[0].backlog: expected int <= 1000000000"]),
        (CLASS + CLASS, ["job_class: names must differ; got 'a' twice"]),
        (
            CLASS + '[[job_class]]\nname = "b"\nfeatures = [1, 2]',
            ["job_class: features must have one length", "2 in 'b'"],
        ),
    ],
)
def test_errors_in_a_file_are_reported(tmp_path: Path, text: str, parts: list[str]) -> None:
    with pytest.raises(BadInput) as caught:
        read(tmp_path, text)
    for part in parts:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_many_names_are_compared_in_no_time() -> None:
    """Each with all others took five seconds."""
    names, began = [f"n{k}" for k in range(30_000)], time.process_time()
    with pytest.raises(BadInput, match="namespace: names must differ; got 'n29999' twice"):
        ServiceSettings(namespace=tuple(map(NamespaceInfo, [*names, names[-1]])))
    assert time.process_time() - began < 1.0


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none\.toml: cannot be read; No such file"):
        load(tmp_path / "none.toml", environment={})


def test_errors_in_the_environment_or_an_option_are_reported() -> None:
    with pytest.raises(BadInput, match="BILINQ_PORT: expected int, got str; got 'tcp://"):
        load(environment={"BILINQ_PORT": "tcp://10.0.0.1:80"})
    with pytest.raises(BadInput, match="BILINQ_RATE: must be finite"):
        load(environment={"BILINQ_RATE": "inf"})
    with pytest.raises(BadInput, match="--max-attempts: expected int >= 1; got 0"):
        load(options={"max_attempts": 0}, environment={})
