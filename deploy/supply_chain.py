"""What the live service is made of: a lock file with hashes, and a bill of materials.

    python deploy/supply_chain.py lock   # writes deploy/requirements.lock, by the index of pip and constraints.txt
    python deploy/supply_chain.py sbom   # writes deploy/sbom.cdx.json (CycloneDX), from what is installed

Run both after a change of constraints.txt or of the dependencies. Both files are the same each time for the same versions.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
import uuid
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCK, SBOM = ROOT / "deploy" / "requirements.lock", ROOT / "deploy" / "sbom.cdx.json"
EXTRAS = ("live", "postgres")
PYTHON = "3.11"
MACHINES = ("x86_64", "aarch64")
GLIBC = ("1", "2010", "2014", *(f"_2_{minor}" for minor in (5, 12, 17, 24, 26, 27, 28)))
"""Names of manylinux for the versions of glibc that Debian 10 and later have."""
HEADER = f"""\
# Versions and SHA-256 of everything that bilinq[postgres] needs, for Python {PYTHON} on Linux, {" and ".join(MACHINES)}.
# Made by `python deploy/supply_chain.py lock`; docs/operations.md says how it is used.
"""


def project() -> dict[str, Any]:
    """Return the table [project] of pyproject.toml."""
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def direct() -> list[str]:
    """Return the requirements of the service itself, without those on extras of bilinq."""
    about = project()
    named = [*about["dependencies"], *(one for extra in EXTRAS for one in about["optional-dependencies"][extra])]
    return [one for one in named if not one.startswith("bilinq")]


def resolve(machine: str) -> dict[tuple[str, str], str]:
    """Return the SHA-256 of each wheel that pip would install on a machine, by name and version."""
    platforms = [word for name in GLIBC for word in ("--platform", f"manylinux{name}_{machine}")]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--dry-run",
             "--ignore-installed", "--only-binary", ":all:", "--target", folder, "--python-version", PYTHON, *platforms,
             "--report", str(report), "-c", str(ROOT / "constraints.txt"), *direct()],
            check=True,
        )  # fmt: skip
        made = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {
        (canonicalize_name(one["metadata"]["name"]), one["metadata"]["version"]): one["download_info"]["archive_info"][
            "hashes"
        ]["sha256"]
        for one in made
    }


def lock() -> str:
    """Return the lock file: names, versions and hashes, and no address."""
    hashes: dict[tuple[str, str], set[str]] = {}
    for machine in MACHINES:
        for package, digest in resolve(machine).items():
            hashes.setdefault(package, set()).add(digest)
    lines = [
        " \\\n".join(
            [f"{name}=={version}", *(f"    --hash=sha256:{digest}" for digest in sorted(hashes[name, version]))]
        )
        for name, version in sorted(hashes)
    ]
    return HEADER + "\n".join(lines) + "\n"


def needed_by(requirements: list[str], extras: frozenset[str] = frozenset()) -> list[Requirement]:
    """Return those requirements that hold here, with one of the extras or without."""
    parsed = map(Requirement, requirements)
    return [
        one
        for one in parsed
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras or [""])
    ]


def closure() -> dict[str, list[str]]:
    """Return the names of all packages that the service needs, each with the names that it needs itself."""
    graph: dict[str, list[str]] = {}
    waiting = needed_by(direct())
    while waiting:
        wanted = waiting.pop()
        name, extras = canonicalize_name(wanted.name), frozenset(wanted.extras)
        needs = needed_by(distribution(name).requires or [], extras | {""})
        known = set(graph.get(name, ()))
        if name not in graph or not known >= {canonicalize_name(one.name) for one in needs}:
            waiting += needs
        graph[name] = sorted(known | {canonicalize_name(one.name) for one in needs})
    return dict(sorted(graph.items()))


def licences(package: Distribution) -> list[dict[str, Any]]:
    """Return the licences that a package declares, as CycloneDX writes them."""
    about = package.metadata
    if "License-Expression" in about:
        return [{"expression": about["License-Expression"]}]
    told = [one.rpartition(" :: ")[2] for one in about.get_all("Classifier") or [] if one.startswith("License")]
    text = (about.get_all("License") or [""])[0]
    names = told or ([text] if text and len(text) < 100 and "\n" not in text else [])
    return [{"license": {"name": name}} for name in names]


def reference(name: str) -> str:
    """Return the package URL of an installed package, which names it in the bill."""
    return f"pkg:pypi/{name}@{distribution(name).version}"


def sbom() -> str:
    """Return the bill of materials of what is installed, in CycloneDX 1.5; its serial number follows from its content."""
    about, graph = project(), closure()
    own = {
        "type": "application", "bom-ref": f"pkg:pypi/bilinq@{about['version']}", "name": "bilinq",
        "version": about["version"], "licenses": [{"expression": about["license"]}],
        "purl": f"pkg:pypi/bilinq@{about['version']}",
    }  # fmt: skip
    components = [
        {"type": "library", "bom-ref": reference(name), "name": name, "version": distribution(name).version,
         "licenses": licences(distribution(name)), "purl": reference(name)}
        for name in graph
    ]  # fmt: skip
    needs: dict[str, list[str]] = {
        own["bom-ref"]: sorted({str(canonicalize_name(one.name)) for one in needed_by(direct())})
    }
    needs |= {reference(name): graph[name] for name in graph}
    edges = [{"ref": ref, "dependsOn": [reference(one) for one in names]} for ref, names in needs.items()]
    body = {"metadata": {"component": own}, "components": components, "dependencies": edges}
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(body, sort_keys=True))
    head = {"bomFormat": "CycloneDX", "specVersion": "1.5", "serialNumber": f"urn:uuid:{serial}", "version": 1}
    return json.dumps(head | body, indent=1) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["lock", "sbom"])
    place, make = {"lock": (LOCK, lock), "sbom": (SBOM, sbom)}[parser.parse_args().what]
    place.write_text(make(), encoding="utf-8")
