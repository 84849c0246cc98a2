"""torch's viewer of its memory snapshots (torch/utils/viz/MemoryViz.js), which no wheel has: from Debian's packages.

    .venv/bin/python -m tests.tools.torch_viewer    # `make viewer`; wants apt and 27 MB

The viewer is that of Debian's source of PyTorch, and the D3 that it imports is that of Debian's node-d3. Both come from
the mirror that apt is set to, are checked by digest, and stay in the environment.
"""

import base64
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import urllib.request
from pathlib import Path

FOLDER = Path(sys.prefix, "share", "memory-viz")
VIEWER, D3 = FOLDER / "MemoryViz.js", FOLDER / "d3.js"
PYTORCH = "pool/main/p/pytorch/pytorch_2.6.0+dfsg.orig.tar.xz"
SHA256 = {
    VIEWER: "313cf4c0e971055e37da051763f042ed149fc5e56ad4a598edadf03b2da71ee5",
    D3: "f9a9e4c1d2e598b5b1eca06e064016607feff65a34e9e5253c7cc931b08d0d8a",
}


def missing() -> str | None:
    """Why the viewer cannot be opened here; None where it can."""
    return None if VIEWER.is_file() and D3.is_file() else "torch's viewer is not here (make viewer)"


def page(template: str, snapshot: bytes, view: str) -> str:
    """A pickled snapshot on torch's own page (`torch.cuda._memory_viz._memory_viz_template`), with nothing to fetch."""
    viewer = VIEWER.read_text("utf-8")
    [address] = re.findall(r'import \{add_local_files\} from "([^"]+)"', template)
    imported = re.findall(r'^import (.+) from "(.+)";$', viewer, re.MULTILINE)
    names = {
        *re.findall(r"\bd3\.(\w+)", viewer),
        *re.findall(r"\w+", "".join(what for what, _ in imported if "{" in what)),
    }
    drawing = _module(_D3.format(code=D3.read_text("utf-8"), names=", ".join(sorted(names - {"event"}))))
    modules = {address: _module(viewer), **{where: drawing for _, where in imported}}
    files = json.dumps([{"name": "snapshot.pickle", "base64": base64.b64encode(snapshot).decode()}])
    head = f"<meta charset=utf-8><script type=importmap>{json.dumps({'imports': modules})}</script></head>"
    return template.replace("</head>", head).replace("$SNAPSHOT", files).replace("$VIZ_KIND", repr(view))


_D3 = """\
export let event;
globalThis.d3 = {{get event() {{ return event; }}, set event(value) {{ event = value; }}}};
{code}
export const {{{names}}} = globalThis.d3;
"""
"""D3 as a module: what it calls `event` changes while it runs."""


def _module(code: str) -> str:
    return f"data:text/javascript;base64,{base64.b64encode(code.encode()).decode()}"


def fetch() -> None:
    """Bring both files to FOLDER.

    Raises ValueError: what came is not what was asked for; OSError, CalledProcessError: no apt or no mirror.
    """
    uris = subprocess.run(
        ("apt-get", "--print-uris", "download", "node-d3"), check=True, capture_output=True, text=True
    ).stdout
    [package] = re.findall(r"'(http.+\.deb)'", uris)
    deb = subprocess.run(
        ("dpkg-deb", "--fsys-tarfile", "/dev/stdin"), input=_get(package), check=True, capture_output=True
    ).stdout
    mirror = package[: package.index("pool/")]
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, archive in ((D3, deb), (VIEWER, _get(mirror + PYTORCH))):
        content = _member(archive, path.name)
        if hashlib.sha256(content).hexdigest() != SHA256[path]:
            raise ValueError(f"{path.name}: not the file that this was written for")
        path.write_bytes(content)


def _get(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=60) as answer:  # noqa: S310 -- apt's own mirror
        content: bytes = answer.read()
        return content


def _member(archive: bytes, name: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r|*") as members:
        for member in members:
            if Path(member.name).name == name and (file := members.extractfile(member)):
                return file.read()
    raise ValueError(f"no {name} in the archive")


if __name__ == "__main__" and missing():
    fetch()
