"""The end of keys: by rotation after a grace, by revocation at once, also for calls that wait."""

import asyncio

import pytest
from slotless import run
from tenants import tenants

from bilinq.errors import Conflict, NoKey, NotFound
from bilinq.live.keys import LOCAL
from bilinq.live.service import Service
from bilinq.live.settings import ServiceSettings
from bilinq.live.store import open_store
from bilinq.live.wire.access import NewKey, Rotate
from bilinq.live.wire.messages import JobClassInfo, ServerClassInfo

pytest_plugins = ["databases"]


def test_the_old_key_is_valid_until_the_grace_is_over(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        settings = ServiceSettings(
            database=database_url, job_class=(JobClassInfo("a", [1.0]),), server_class=(ServerClassInfo("x", [1.0]),)
        )
        service = Service(settings, open_store(database_url))
        await service.start()
        old = await service.create_key(LOCAL, NewKey(["submit", "read"], "batch", "team", days=30.0))
        new = await service.rotate_key(LOCAL, old.info.prefix, Rotate(grace=3600.0))
        assert (new.info.scopes, new.info.namespace, new.info.name) == (["submit", "read"], "team", "batch")
        assert new.info.expires == pytest.approx(new.info.created + 30 * 86_400.0, abs=5.0)
        assert service.identify(old.key).namespace == service.identify(new.key).namespace == "team"
        later = new.info.created + 3601.0
        monkeypatch.setattr("bilinq.live.service.service.time.time", lambda: later)
        with pytest.raises(NoKey, match="has expired"):
            service.identify(old.key)
        assert service.identify(new.key).scopes == {"submit", "read"}
        with pytest.raises(Conflict, match="has expired or was revoked; create a new one"):
            await service.rotate_key(LOCAL, old.info.prefix, Rotate())
        with pytest.raises(NotFound, match="there is no key 'nobody'"):
            await service.rotate_key(LOCAL, "nobody", Rotate())
        actions = [entry.what for entry in (await service.audit(LOCAL, 10)).entries]
        assert actions[:3] == ["rotate key", "create key", "create key"]
        await service.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("call", ["lease", "work"])
@pytest.mark.parametrize("expires", [False, True])
def test_a_key_that_ends_while_its_call_waits_gets_no_job(call: str, expires: bool, sqlite_url: str) -> None:
    """The job that was meant for it returns unused, and the next worker gets it with all its attempts."""

    async def scenario() -> None:
        async with tenants(sqlite_url) as one:
            await one.key("worker", ["work"], "a")
            server = await one.register("worker", "s")
            path, body = (
                (f"/v1/servers/{server}/lease?wait=30", None)
                if call == "lease"
                else ("/v1/work", {"lease": [server], "wait": 30.0})
            )
            waiting = asyncio.ensure_future(one.ask("worker", "POST", path, body))
            while not one.service.replica.memory.servers.anyone_idle():
                await asyncio.sleep(0.01)
            prefix = one.keys["worker"][3:11]
            if expires:
                keys = one.service.replica.memory.keys
                keys[prefix] = keys[prefix]._replace(expires=1.0)
            else:
                await one.service.revoke_key(LOCAL, prefix)
            [id] = await one.submit("a", "a job")
            one.service.slots.try_slot()
            answer = await asyncio.wait_for(waiting, 5.0)
            assert (answer.status_code, answer.json()["type"]) == (401, "urn:bilinq:no-key")
            lease = await one.lease("a", await one.register("a", "other"))
            assert (lease["job"]["id"], lease["job"]["attempts"]) == (id, 0)

    run(scenario())
