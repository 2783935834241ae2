"""Numbers for new rows, each used once."""

from itertools import count

from bilinq.live.store.admin_tables import LargestIds


class Ids:
    """The next number of each kind; the leader alone hands them out."""

    def __init__(self, largest: LargestIds) -> None:
        self.job, self.lease, self.server, self._seq, self.class_ = (count(last + 1) for last in largest)
        self.last_seq = largest.seq

    def next_seq(self) -> int:
        """Return the next place in the log of rewards."""
        self.last_seq = next(self._seq)
        return self.last_seq


def number(kind: str, text: str) -> int | None:
    """Return the number in an id such as "j12" of kind "j"; None if it is no such id.

    Examples
    --------
    >>> number("j", "j12"), number("j", "l12"), number("j", "j012")
    (12, None, None)
    """
    digits = text[1:]
    if text[:1] != kind or not digits.isdigit() or digits[0] == "0" or not digits.isascii() or len(digits) > 18:
        return None
    return int(digits)
