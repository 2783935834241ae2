"""Another service that gets the same jobs, to compare with: what it tells of itself is shown beside."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import msgspec

from bilinq.live.wire.messages import SettingsInfo
from bilinq.live.wire.samples import BaselineSample, History, Sample

log = logging.getLogger("bilinq.live")

TIMEOUT = 5.0
"""Seconds to wait for an answer."""
FAILURES = (httpx.HTTPError, httpx.InvalidURL, msgspec.MsgspecError)
"""Errors of a baseline that is unavailable, refuses the request, or is some other program."""


class Baseline:
    """Asks a service at `url` for its moments, again and again; while it does not answer, there is nothing to show."""

    def __init__(self, url: str, key: str | None, every: float) -> None:
        self._url, self._every = url.rstrip("/"), every
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._name = ""
        self._last: Sample | None = None
        self._reward = 0.0
        self._failed = False

    def take(self) -> BaselineSample | None:
        """Return a sample of the baseline, with its rewards since the last call."""
        last, reward = self._last, self._reward
        self._reward = 0.0
        return (
            None if last is None else BaselineSample(self._name, sum(last.queued), reward, last.wait_p50, last.wait_p90)
        )

    async def run(self) -> None:
        """Ask until cancelled."""
        async with httpx.AsyncClient(headers=self._headers, timeout=TIMEOUT, trust_env=False) as client:
            while True:
                await self.ask(client)
                await asyncio.sleep(self._every)

    async def ask(self, client: httpx.AsyncClient) -> None:
        """Ask once for what is new; that it does not answer is logged once."""
        try:
            if not self._name:
                self._name = (await _get(client, f"{self._url}/v1/knobs", SettingsInfo)).policy
            since = {"limit": "1"} if self._last is None else {"after": self._last.id}
            history = await _get(client, f"{self._url}/v1/history", History, since)
        except FAILURES as error:
            if not self._failed:
                log.warning("the baseline at %s does not answer: %s", self._url, error or type(error).__name__)
            self._failed, self._last, self._reward = True, None, 0.0
            return
        self._failed = False
        for moment in history.moments:
            self._last = moment
            self._reward += sum(moment.reward)


async def _get(client: httpx.AsyncClient, url: str, kind: type, query: dict[str, str] | None = None) -> Any:
    answer = await client.get(url, params=query)
    answer.raise_for_status()
    return msgspec.json.decode(answer.content, type=kind)
