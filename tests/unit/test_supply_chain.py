"""The lock file and the bill of materials in deploy/: complete, in step with constraints.txt, and without addresses."""

import json
import re
from typing import Any

import supply_chain
from packaging.utils import canonicalize_name
from supply_chain import LOCK, ROOT, SBOM, closure, direct, licences, needed_by

ENTRY = re.compile(r"^(\S+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)


def pinned() -> dict[str, str]:
    """Return the versions in constraints.txt by name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    return {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}


def locked() -> dict[str, tuple[str, list[str]]]:
    """Return versions and hashes in the lock file by name."""
    found = ENTRY.findall(LOCK.read_text(encoding="utf-8"))
    return {name: (version, re.findall("[0-9a-f]{64}", hashes)) for name, version, hashes in found}


def test_every_locked_version_is_that_of_the_constraints_and_has_hashes() -> None:
    assert {name: version for name, (version, _) in locked().items()}.items() <= pinned().items()
    for _, hashes in locked().values():
        assert 1 <= len(hashes) <= len(supply_chain.MACHINES) and hashes == sorted(set(hashes))


def test_the_lock_file_has_nothing_but_names_versions_and_hashes() -> None:
    text = LOCK.read_text(encoding="utf-8")
    assert ENTRY.sub("", text.removeprefix(supply_chain.HEADER)).strip() == ""
    assert text.startswith(supply_chain.HEADER) and "://" not in text


def test_all_that_the_service_needs_is_locked() -> None:
    """By the metadata of what is installed: pip would refuse an incomplete file."""
    assert closure().keys() == locked().keys()
    assert {"uvicorn", "psycopg-binary", "numba", "anyio"} <= locked().keys()


def test_requirements_hold_by_their_markers_and_extras() -> None:
    wanted = ['a; extra == "x"', "b", 'c; python_version < "3"', 'd; extra == "y"']
    assert [one.name for one in needed_by(wanted)] == ["b"]
    assert [one.name for one in needed_by(wanted, frozenset({"", "x"}))] == ["a", "b"]
    assert not any(one.startswith("bilinq") for one in direct())


def bill() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SBOM.read_text(encoding="utf-8"))
    return found


def test_the_bill_has_the_fields_that_cyclonedx_requires() -> None:
    found = bill()
    assert (found["bomFormat"], found["specVersion"], found["version"]) == ("CycloneDX", "1.5", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", found["serialNumber"])
    for one in [found["metadata"]["component"], *found["components"]]:
        assert one["type"] in ("application", "library")
        assert one["bom-ref"] == one["purl"] == f"pkg:pypi/{one['name']}@{one['version']}"
        assert one["licenses"] and all(("expression" in each) ^ ("license" in each) for each in one["licenses"])
        assert not any("expression" in each for each in one["licenses"][1:])  # one expression, or several licences
    known = [one["bom-ref"] for one in (found["metadata"]["component"], *found["components"])]
    assert [one["ref"] for one in found["dependencies"]] == known and len(set(known)) == len(known)
    assert {ref for one in found["dependencies"] for ref in one["dependsOn"]} == set(known[1:])


def test_the_bill_lists_what_is_locked() -> None:
    listed = {one["name"]: one["version"] for one in bill()["components"]}
    assert listed == {name: version for name, (version, _) in locked().items()}


def test_the_bill_is_the_same_each_time() -> None:
    assert supply_chain.sbom() == supply_chain.sbom() == SBOM.read_text(encoding="utf-8")


class Package:
    """Stands in for an installed package."""

    def __init__(self, **metadata: Any) -> None:
        self.metadata = Metadata({name.replace("_", "-"): value for name, value in metadata.items()})


class Metadata(dict[str, Any]):
    """Stands in for the metadata of a package."""

    def get_all(self, name: str) -> Any:
        found = self.get(name)
        return [found] if isinstance(found, str) else found


def test_licences_are_taken_from_whatever_a_package_declares() -> None:
    for package, wanted in (
        (Package(License_Expression="MIT", License="x"), [{"expression": "MIT"}]),
        (Package(Classifier=["License :: OSI Approved :: BSD License"]), [{"license": {"name": "BSD License"}}]),
        (Package(License="ISC"), [{"license": {"name": "ISC"}}]),
        (Package(License="a whole\ntext"), []),
    ):
        assert licences(package) == wanted  # type: ignore[arg-type]
