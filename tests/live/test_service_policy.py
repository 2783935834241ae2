"""First come, first served, as the service's policy: it says that it has no knobs, and keeps what others may learn from."""

import time
from pathlib import Path

import pytest
from process import CONFIG, Process, make_key, wait_for

from bilinq.client import Client, JobClassInfo, SettingsUpdate
from bilinq.errors import BadInput

CLASSES = CONFIG + '[[job_class]]\nname = "long"\nfeatures = [0.1, 1.0]\nweight = 3.0\n'


def serve(folder: Path, *options: str) -> Process:
    return Process(folder, f"sqlite:///{folder}/live.db", *options, settings=CLASSES)


def test_first_come_first_served_and_what_it_leaves_behind(tmp_path: Path) -> None:
    key = make_key(f"sqlite:///{tmp_path}/live.db", "admin")
    with serve(tmp_path, "--policy", "first-come") as process, Client(process.address, key) as client:
        assert client.settings().policy == "first-come"
        assert (client.settings().target_wait, client.settings().work_conserving) == (None, True)
        for update in (SettingsUpdate(target_wait=1.0), SettingsUpdate(weight={"long": 2.0})):
            with pytest.raises(BadInput, match="belong to policy sabr; the service runs policy first-come"):
                client.update_settings(update)
        client.put_job_class(JobClassInfo("long", [0.1, 1.0], weight=5.0))
        server = client.register("gpu").id
        came, went = [], []
        for name in ("short", "long", "short", "short", "long"):
            came.append(client.submit(name).id)
            time.sleep(0.05)
        while (lease := client.lease(server, wait=0.3)) is not None:
            went.append(lease.job.id)
            client.finish(lease.lease, lease.fence, 0.25)
        assert went == came
        state = client.state()
        assert (state.V, state.expected, state.mean) == (0.0, [], [])
        assert state.knobs.policy == "first-come"
        assert process.stop() == 0
    with serve(tmp_path) as process, Client(process.address, key) as client:
        found = client.state()
        assert found.knobs.policy == "sabr"
        assert found.mean[0][0] == pytest.approx(0.25, abs=0.1), "learnt from what was earned first come, first served"
        assert [one.weight for one in client.classes().job_classes] == [1.0, 5.0]
        assert not [event for event in process.events() if event["level"] == "error"]


def test_a_lease_outlives_the_service_and_its_reward_comes_before_the_next_slot(tmp_path: Path) -> None:
    key = make_key(f"sqlite:///{tmp_path}/live.db", "admin")
    with serve(tmp_path, "--policy", "first-come") as process, Client(process.address, key) as client:
        server = client.register("gpu").id
        first, second = client.submit("short").id, client.submit("long").id
        lease = client.lease(server)
        assert lease is not None
        assert process.stop() == 0
    with serve(tmp_path, "--policy", "first-come") as process, Client(process.address, key) as client:
        client.finish(lease.lease, lease.fence, 0.5)
        again = client.lease(server)
        assert again is not None
        assert {lease.job.id, again.job.id} == {first, second}
        wait_for(lambda: client.state().counters.get("rewards") == 1)
        assert not [event for event in process.events() if event["level"] == "error"]
