"""Settings: options over environment over file, and a clear line for whatever is wrong."""

from pathlib import Path
from typing import Any

import pytest

from bilinq.errors import BadInput
from bilinq.live.settings import RewardBounds, ServiceSettings, load
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
