"""Builds sdist and wheel, installs the wheel with each extra alone into fresh environments, and runs what it promises.

`make package` runs this as a program, in some minutes; the test suite runs the parts that need no index.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROBLEM = '{"queue": [3, 1], "reward": [[0.2, 0.9], [0.5, 0.4]], "capacity": [1, 1], "V": 10.0, "gamma": 1.2}'
CORE = (
    "bilinq --version",
    "bilinq init",
    "bilinq trace show --json",
    "bilinq allocate slot.json --json",
    "bilinq simulate --slots 20 --replications 2 --json",
)
PROMISES = {
    "": CORE,
    "live": (
        "bilinq keys create --scope admin",
        "python -c 'import bilinq.live.run, bilinq.client, bilinq.demo.service'",
    ),
    "gateway": ("bilinq init gateway", "python -c 'import bilinq.gateway.run, bilinq.gateway.demo'"),
    "serve": ("python -c 'import bilinq.plugins.ray_serve'",),
    "litellm": ("python -c 'import litellm, bilinq.plugins.litellm'",),
    "postgres": ("python -c 'import bilinq.live.store.postgres, bilinq.live.run'",),
    "lab": ("bilinq paper comparison --quick --out out --workers 1",),
    "otel": ("python -c 'import bilinq.live.tracing, opentelemetry.sdk.trace'",),
    "ray": ("bilinq distributed --engine ray --shards 2 --json",),
    "text": (
        "python -c 'from bilinq.traces.routing_tables import _hashed; _hashed(\"add two more\".split() * 4, 2, 0)'",
    ),
    "gymnasium": ("python -c 'import bilinq.plugins.gymnasium'",),
    "peers": ("python -c 'from bilinq.routing.peers import MODULES, library; [library(name) for name in MODULES]'",),
}
"""What must run with each extra alone, in a folder without the source tree."""
LOOSE = ("litellm",)
"""Extras of one package whose pins constraints.txt or the index may not meet: it gets what it needs in any version."""
NEEDED = """
import sys
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
found = map(Requirement, requires(sys.argv[1]))
wanted = [one for one in found if one.marker is None or one.marker.evaluate({"extra": ""})]
print(*(f"{one.name}[{','.join(one.extras)}]" if one.extras else one.name for one in wanted))
"""


def build(kind: str, folder: Path) -> Path:
    """Return the wheel or sdist of the source tree, built by the setuptools of this environment."""
    code = f"import sys; from setuptools.build_meta import build_{kind}; build_{kind}(sys.argv[1])"
    with tempfile.TemporaryDirectory() as copy:
        names = subprocess.run(
            ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
        )
        for name in filter(None, names.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                (target := Path(copy, name)).parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes((ROOT / name).read_bytes())
        subprocess.run([sys.executable, "-c", code, str(folder)], cwd=copy, capture_output=True, check=True)
    (made,) = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


def install(package: Path, extra: str, folder: Path) -> Path:
    """Return the folder of programs of a fresh environment with a package and one extra, or none."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    pinned = [*pip, "-c", str(ROOT / "constraints.txt")]
    if extra in LOOSE:
        subprocess.run([*pinned, str(package)], check=True)
        subprocess.run([*pinned, "--no-deps", extra], check=True)
        needed = subprocess.run([python, "-c", NEEDED, extra], capture_output=True, text=True, check=True)
        subprocess.run([*pip, *needed.stdout.split()], check=True)
    else:
        subprocess.run([*pinned, f"{package}[{extra}]" if extra else str(package)], check=True)
    return folder / "bin"


def size(environment: Path) -> int:
    """Return the bytes that an environment takes, without pip."""
    files = (path for path in environment.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files if "/pip" not in str(path) and "__pycache__" not in path.parts)


def run(commands: Sequence[str], programs: Path, folder: Path) -> None:
    """Run commands with the programs of an environment in a folder of their own; raise if one fails."""
    folder.mkdir()
    (folder / "slot.json").write_text(PROBLEM)
    for command in commands:
        began = time.perf_counter()
        clean = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder)}
        done = subprocess.run(["sh", "-c", command], cwd=folder, env=clean, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        print(f"  {time.perf_counter() - began:6.1f} s  {command}", flush=True)


def main() -> None:
    """Check the sdist, and the wheel with each extra."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extra", action="append", help="only this extra; an empty text is the core; repeatable")
    wanted = parser.parse_args().extra or list(PROMISES)
    sizes = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel, sdist = build("wheel", folder), build("sdist", folder)
        print(f"{wheel.name}: {wheel.stat().st_size:,} bytes; {sdist.name}: {sdist.stat().st_size:,} bytes")
        for number, extra in enumerate(wanted):
            print(f"bilinq[{extra}]" if extra else "bilinq", flush=True)
            programs = install(wheel if extra else sdist, extra, folder / f"environment-{number}")
            sizes[extra] = size(programs.parent)
            run(PROMISES[extra], programs, folder / f"run-{number}")
    print(json.dumps({name or "core": round(bytes / 1e6) for name, bytes in sizes.items()}), "MB installed")


if __name__ == "__main__":
    main()
