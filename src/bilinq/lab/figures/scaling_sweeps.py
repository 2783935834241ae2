"""What the figure `scaling` varies: four sweeps, and the policies that each of them runs."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from bilinq.lab.once import once
from bilinq.lab.presets import PRESETS, order
from bilinq.lab.runs import Synthetic
from bilinq.policies import Policy, UgdaOl

LINES: dict[str, Callable[[float], Policy]] = {
    "Thompson sampling": PRESETS["calibrated"].sabr,
    "public code radius": PRESETS["published"].sabr,
    "printed radius": PRESETS["paper"].sabr,
    "no job served twice": lambda V: once(PRESETS["calibrated"].sabr(V)),
    "UGDA-OL": lambda V: UgdaOl(learning="job", V=V),
    "UGDA-OL, per class pair": lambda V: UgdaOl(learning="class", V=V),
}
"""A policy for each V, by the name of its line; the first four are SABR."""
SABR = tuple(LINES)[:4]
UGDA = tuple(LINES)[4:]
FIXED = ("Thompson sampling", "no job served twice")
"""Lines that are also run at a V that does not depend on T."""


@dataclass(frozen=True)
class Sweep:
    """One number that is varied at a load of 0.25, and what theory says about it.

    Attributes
    ----------
    name, title : str
        The symbol, and the title of the panel.
    values : tuple of int
    exponent : float
        The largest with which regret may grow, up to logarithms.
    lines : tuple of str
        Names in `LINES`.
    setting : callable
        The setting for a value.
    horizon : int
        The number of slots, unless that is what is varied.
    """

    name: str
    title: str
    values: tuple[int, ...]
    exponent: float
    lines: tuple[str, ...]
    setting: Callable[[int], Synthetic]
    horizon: int = 500

    def slots(self, value: int) -> int:
        """Return the number of slots for a value."""
        return value if self.name == "T" else self.horizon

    def V(self, value: int) -> float:
        """Return sqrt(I T), the order that Corollary 3.2 asks for."""
        return order(self.setting(value).example, self.slots(value))

    def shorter(self) -> "Sweep":
        """Return the sweep for a quick look: its first two values, and half the slots."""
        values = tuple(self.slots(value) // 2 if self.name == "T" else value for value in self.values[:2])
        return replace(self, values=values, horizon=self.horizon // 2)


def _many_servers(J: int) -> Synthetic:
    """Return 12 servers, which 2, 3 or 6 classes share equally, at load 0.25 and still one job per slot."""
    return Synthetic(server_classes=J, servers=12, traffic=3.0, service_rate=1 / 3)


SWEEPS: dict[str, Sweep] = {
    sweep.name: sweep
    for sweep in (
        Sweep("T", "(a) Over T: theory 1/2", (250, 500, 1000, 2000), 0.5,
              ("Thompson sampling", "public code radius", "printed radius", *UGDA), lambda T: Synthetic()),
        Sweep("I", "(b) Over I: theory at most 1/2", (5, 10, 20, 40), 0.5,
              ("Thompson sampling", "public code radius", "no job served twice"), lambda I: Synthetic(job_classes=I)),
        Sweep("d", "(c) Over d: theory at most 2", (2, 3, 6), 2.0,
              ("Thompson sampling", "public code radius"), lambda d: Synthetic(dimension=d)),
        Sweep("J", "(d) Over J: theory 0", (2, 3, 6), 0.0,
              ("Thompson sampling", "public code radius", *UGDA), _many_servers, 250),
    )
}  # fmt: skip
"""By symbol, in the order of the panels."""
QUICK = {name: sweep.shorter() for name, sweep in SWEEPS.items()}
"""The same for a quick look."""
