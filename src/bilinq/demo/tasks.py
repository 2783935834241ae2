"""What goes through the pipes between the demo and its processes: a line of JSON each."""

from typing import Any

from msgspec import Struct


class Serve(Struct, frozen=True):
    """Be a service for a fleet, with these options of `bilinq serve`."""

    fleet: str
    options: dict[str, Any]


class Work(Struct, frozen=True):
    """Be the servers of some classes of a fleet."""

    fleet: str
    server_classes: list[str]
    url: str
    key: str


class Target(Struct, frozen=True):
    """A service that jobs go to."""

    url: str
    key: str


class Load(Struct, frozen=True):
    """Send the same jobs to each of the targets."""

    fleet: str
    targets: list[Target]
    seed: int | None = None


class Opened(Struct, frozen=True, tag=True):
    """The database is the service's: here are keys for it; `rewards` is how many it has learnt from before."""

    about: str
    servers: dict[str, int]
    rewards: int
    admin: str
    work: str
    submit: str
    read: str


class Ready(Struct, frozen=True, tag=True):
    """The service answers at `url`."""

    url: str


class Failed(Struct, frozen=True, tag=True):
    """It could not start; `error` is for the user to read."""

    error: str
