"""Rotation: a new key may do what the old one may, and the old one ends after the grace."""

import asyncio

import pytest

from bilinq.errors import Conflict, NoKey, NotFound
from bilinq.live.keys import LOCAL
from bilinq.live.service import Service
from bilinq.live.settings import ServiceSettings
from bilinq.live.store import open_store
from bilinq.live.wire.messages import JobClassInfo, NewKey, Rotate, ServerClassInfo

pytest_plugins = ["databases"]


def test_the_old_key_is_valid_until_the_grace_is_over(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
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

    asyncio.run(run())
