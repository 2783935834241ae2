"""Secrets in variables of the environment or in files that these name, such as systemd and container platforms provide."""

import os
from collections.abc import Mapping
from pathlib import Path

from bilinq.errors import BadInput

SUFFIX = "_FILE"


def read_secret(name: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the variable `name`, or else the text of the file that `name` with _FILE names; None if neither is set.

    Spaces and line ends around the text are not part of it. Errors never show the text.
    """
    value, file = environment.get(name) or None, environment.get(name + SUFFIX) or None
    if file is None:
        return value
    if value is not None:
        raise BadInput(f"{name} and {name}{SUFFIX} exclude each other; got both")
    try:
        text = Path(file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise BadInput(f"{name}{SUFFIX} must name a file that can be read; {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{name}{SUFFIX} must name a file with UTF-8 text; {file} has something else") from None
    if not text:
        raise BadInput(f"{name}{SUFFIX} must name a file that is not empty; got {file}")
    return text
