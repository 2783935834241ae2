"""Keys: 256 random bits and a prefix that names them; only a hash is stored."""

import pytest

from bilinq.errors import BadInput, NoKey, NotAllowed
from bilinq.live.keys import Identity, check_scopes, hash_key, make_key, matches, prefix_of


def test_a_key_has_a_prefix_and_256_bits() -> None:
    key = make_key()
    start, prefix, secret = key[:3], key[3:11], key[12:]
    assert (start, key[11], len(secret)) == ("bq_", "_", 43)
    assert prefix_of(key) == prefix
    assert prefix.isalnum()


def test_keys_differ() -> None:
    assert len({make_key() for _ in range(1000)}) == 1000
    assert len({prefix_of(make_key()) for _ in range(1000)}) == 1000


def test_the_hash_is_sha256_and_does_not_hold_the_key() -> None:
    """SHA-256 of "abc" from FIPS 180-4."""
    assert hash_key("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    key = make_key()
    assert key[12:] not in hash_key(key)


def test_only_the_very_same_key_matches() -> None:
    key = make_key()
    stored = hash_key(key)
    assert matches(key, stored)
    assert not matches(key[:-1] + ("A" if key[-1] != "A" else "B"), stored)
    assert not matches(make_key(), stored)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bq_",
        "bq_abcdefgh",
        "x" * 55,
        "bq_abcdefgh-" + "x" * 43,
        "bq_abcdefgh_" + "x" * 42,
        "bq_abcdefgh_" + "é" * 43,
    ],
)
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(NoKey, match="not one of this service"):
        prefix_of(text)


def test_scopes_and_what_admin_stands_for() -> None:
    reader = Identity("abc", "default", frozenset({"read"}))
    assert reader.may("read")
    assert not reader.may("submit")
    assert not reader.may("admin")
    admin = Identity("abc", "default", frozenset({"admin"}))
    assert all(map(admin.may, ("submit", "work", "read", "admin")))
    reader.require("submit", "read")
    with pytest.raises(NotAllowed, match="abc lacks the scope submit or work"):
        reader.require("submit", "work")


def test_scopes_are_checked_and_put_in_order() -> None:
    assert check_scopes(["read", "submit", "read"]) == ["submit", "read"]
    with pytest.raises(BadInput, match="got 'root'"):
        check_scopes(["read", "root"])
    with pytest.raises(BadInput, match="must be given"):
        check_scopes([])
