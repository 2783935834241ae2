"""Builds a TypeScript client from /openapi.json with generators of npm, compiles it, and uses it against a running service.

`make typescript` runs this; it needs Node.js, npm and its registry.
"""

import json
import subprocess
import tempfile
from pathlib import Path

import httpx
from process import Process, make_key

PACKAGES = ("openapi-typescript@7", "openapi-fetch@0", "typescript@5", "@types/node@20")
OPTIONS = {
    "compilerOptions": {
        "strict": True, "module": "nodenext", "target": "es2022", "outDir": "built", "types": ["node"], "skipLibCheck": True,
    },
    "include": ["*.ts"],
}  # fmt: skip
CLIENT = """
import createClient from "openapi-fetch";
import type { paths } from "./schema.js";

const [address, key] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl: address, headers: { Authorization: `Bearer ${key}` } });

const sent = await client.POST("/v1/jobs", { body: { jobs: [{ class: "short", payload: { prompt: "hello" } }] } });
if (sent.error) throw new Error(JSON.stringify(sent.error));
const id = sent.data.jobs[0].id;

const found = await client.GET("/v1/jobs/{id}", { params: { path: { id } } });
if (found.error) throw new Error(JSON.stringify(found.error));

const refused = await client.POST("/v1/jobs", { body: { jobs: [{ class: "unheard" }] } });
console.log(JSON.stringify({ id, state: found.data.state, class: found.data.class, refused: refused.response.status }));
"""


def run(folder: Path, *words: str) -> str:
    """Return what a program prints in a folder; raise if it fails."""
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    """Generate, compile and use the client."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        database = f"sqlite:///{folder}/live.db"
        key = make_key(database, "admin")
        (folder / "package.json").write_text(json.dumps({"type": "module", "private": True}))
        (folder / "tsconfig.json").write_text(json.dumps(OPTIONS))
        (folder / "client.ts").write_text(CLIENT)
        run(folder, "npm", "install", "--no-audit", "--no-fund", *PACKAGES)
        with Process(folder / "service", database) as process:
            (folder / "openapi.json").write_text(httpx.get(f"{process.address}/openapi.json").text)
            optional = ("--default-non-nullable", "false")  # what has a default may be left out
            run(folder, "npx", "openapi-typescript", "openapi.json", *optional, "--output", "schema.ts")
            run(folder, "npx", "tsc")
            found = json.loads(run(folder, "node", "built/client.js", process.address, key))
            assert process.stop() == 0
    assert found == {"id": "j1", "state": "queued", "class": "short", "refused": 404}, found
    print("a TypeScript client submits a job, reads it, and gets errors:", json.dumps(found))


if __name__ == "__main__":
    main()
