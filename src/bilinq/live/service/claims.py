"""Keys under which jobs are being stored: until that is done, the database does not know them yet."""

import asyncio
from collections.abc import Callable, Collection

Key = tuple[str, str]
"""A namespace, and the key of a job in it."""


class Claims:
    """Keys that one call has for itself at a time."""

    def __init__(self) -> None:
        self._taken: dict[Key, asyncio.Event] = {}

    async def take(self, keys: Collection[Key]) -> Callable[[], None]:
        """Wait until nobody else has one of `keys`, then take all; call what is returned to give them back, once."""
        while other := next((self._taken[key] for key in keys if key in self._taken), None):
            await other.wait()
        free = asyncio.Event()
        self._taken |= dict.fromkeys(keys, free)

        def release() -> None:
            for key in keys:
                del self._taken[key]
            free.set()

        return release
