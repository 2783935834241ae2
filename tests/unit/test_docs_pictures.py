"""The pictures of the documentation are those that `docs/pictures.py` draws."""

import re
from pathlib import Path

import matplotlib.image
import numpy as np
import pictures
import pytest

ROOT = Path(__file__).parents[2]
QUICK = ("concepts-overview", "concepts-slots", "concepts-look-ahead", "concepts-features")
"""The others take many seconds."""


def test_every_picture_is_drawn_and_shown() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))
    shown = set(re.findall(r"\]\(((?:concepts|tutorial)-[\w-]+)\.png\)", pages))
    assert shown == set(pictures.PICTURES)
    assert all((ROOT / "docs" / f"{name}.png").exists() for name in shown)


@pytest.mark.parametrize("name", QUICK)
def test_a_picture_is_up_to_date(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other versions of Matplotlib may place a letter differently; another curve would be noticed."""
    monkeypatch.setattr(pictures, "PICTURES", {name: pictures.PICTURES[name]})
    [drawn] = pictures.draw(tmp_path)
    found, kept = (matplotlib.image.imread(path) for path in (drawn, ROOT / "docs" / f"{name}.png"))
    assert found.shape == kept.shape
    assert np.abs(found - kept).mean() < 0.002
