"""A Hugging Face Hub on this machine: what its client asks for models, over real HTTP, with faults on demand.

Repositories are lists of commits; a commit is a map from file names to contents. Large files come first, by their
digest, and are part of nothing until a commit names them, as on the real Hub.
"""

import base64
import hashlib
import json
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote, urlsplit

TOKEN = "hf_" + "StandInSecretForTests"
LARGE = re.compile(r"\.(safetensors|svg|bin|png)$")
DATE = "2026-01-01T00:00:00.000Z"


@dataclass
class Fault:
    """What goes wrong with the next requests of a kind."""

    request: str
    """Regular expression for ``METHOD /path``."""
    status: int = 0
    """Answered instead; 0: the connection is cut."""
    headers: dict[str, str] = field(default_factory=dict)
    times: int = 1
    message: str = "injected"
    after: bool = False
    """Only when the request has done its work: nobody hears that it has."""
    meanwhile: Callable[[], None] | None = None
    """Called when the request is there, before it is answered; with status -1 it is then answered as always."""


@dataclass
class Commit:
    """One state of a repository."""

    id: str
    title: str
    files: dict[str, bytes]
    """Of all names, with their contents."""
    parent: str


class Repository:
    """Its commits, oldest first."""

    def __init__(self, *, private: bool = False) -> None:
        self.private = private
        self.commits: list[Commit] = []
        self.commit("initial commit", {".gitattributes": b"*.safetensors filter=lfs\n"})

    @property
    def head(self) -> Commit:
        return self.commits[-1]

    def commit(self, title: str, files: dict[str, bytes]) -> Commit:
        parent = self.commits[-1].id if self.commits else ""
        seed = json.dumps([len(self.commits), title, parent, sorted(map(str, files))])
        made = Commit(hashlib.sha1(seed.encode()).hexdigest(), title, files, parent)
        self.commits.append(made)
        return made

    def find(self, revision: str) -> Commit | None:
        if revision == "main":
            return self.head
        return next((one for one in self.commits if one.id == revision), None)


class HubStandIn(ThreadingHTTPServer):
    """Serves in threads of its own between ``with`` and its end."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.repositories: dict[str, Repository] = {}
        self.large: dict[str, bytes] = {}
        """Uploaded, by SHA-256."""
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.sent_bytes = 0
        """Of large files that came in whole."""
        self.writers = {TOKEN}
        self.others: set[str] = set()
        """Tokens of accounts that see what is public, and may write nowhere. Any other token is unknown to the Hub."""
        self.lock = threading.RLock()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is what some tests are about."""

    def fault(self, request: str, status: int = 0, **options: Any) -> Fault:
        """Have the next request of a kind go wrong."""
        made = Fault(request, status, **options)
        self.faults.append(made)
        return made

    def count(self, request: str) -> int:
        """How many requests of a kind there were."""
        return sum(bool(re.fullmatch(request, one)) for one in self.requests)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: HubStandIn

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def handle_one(self) -> None:
        self.path_only = urlsplit(self.path).path
        request = f"{self.command} {self.path_only}"
        with self.server.lock:
            self.server.requests.append(request)
            fault = next((f for f in self.server.faults if f.times > 0 and re.fullmatch(f.request, request)), None)
            if fault is not None:
                fault.times -= 1
        if fault is not None and fault.status == 0 and not fault.after:
            self.rfile.read(int(self.headers.get("Content-Length") or 0) // 2)  # cut in the middle of what comes
            self.cut()
            return
        body = self.read_body()
        if fault is not None and fault.meanwhile is not None:
            fault.meanwhile()
        if fault is not None and fault.status >= 0:
            if fault.after:
                self.answer_nobody = True
                self.dispatch(body)
                self.answer_nobody = False
            if fault.status == 0:
                self.cut()
            else:
                self.refuse(fault.status, fault.message, headers=fault.headers)
            return
        self.dispatch(body)

    do_GET = do_POST = do_PUT = do_HEAD = handle_one  # noqa: N815 - http.server wants these names
    answer_nobody = False

    def cut(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    # -- answers -----------------------------------------------------------------------------------------------------

    def answer(self, content: Any, *, headers: dict[str, str] | None = None, status: int = 200) -> None:
        if self.answer_nobody:
            return
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        kind = "application/octet-stream" if isinstance(content, bytes) else "application/json"
        self.send_response_only(status)
        about = {"Date": self.date_time_string(), "Content-Type": kind, "Content-Length": str(len(data))}
        for name, value in (about | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def refuse(self, status: int, message: str, code: str = "", headers: dict[str, str] | None = None) -> None:
        told = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {}) | (headers or {})
        self.answer({"error": message}, headers=told, status=status)

    @property
    def token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    @property
    def may_write(self) -> bool:
        return self.token in self.server.writers

    @property
    def is_known(self) -> bool:
        return self.token in self.server.writers | self.server.others

    def refuse_unknown(self) -> bool:
        """Whether it has answered: it takes no token that it does not know, whatever it is asked."""
        if not self.token or self.is_known:
            return False
        self.refuse(401, "Invalid credentials in Authorization header")
        return True

    # -- requests ----------------------------------------------------------------------------------------------------

    def dispatch(self, body: bytes) -> None:
        path = unquote(self.path_only)
        if path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif path == "/api/repos/create":
            self.create(json.loads(body))
        elif path.startswith("/large/"):
            self.large(path.removeprefix("/large/"), body)
        elif found := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            self.batch(found[1], json.loads(body))
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|preupload|commit)/(.+))?", path):
            self.model(found[1], found[2] or "revision", found[3] or "main", body)
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.resolve(found[1], found[2], found[3])
        else:
            self.refuse(404, f"the stand-in knows no {self.command} {path}")

    def repository(self, name: str) -> Repository | None:
        """Answers by itself when it is not to be seen."""
        found = self.server.repositories.get(name)
        if self.refuse_unknown():
            return None
        if found is None or (found.private and not self.may_write):
            self.refuse(404 if self.is_known else 401, "Repository not found", "RepoNotFound")
            return None
        return found

    def create(self, fields: dict[str, Any]) -> None:
        name = f"{fields.get('organization') or 'tester'}/{fields['name']}"
        if self.refuse_unknown():
            return
        if not self.may_write:
            if self.is_known:
                self.refuse(403, "You don't have the rights to create a model under this namespace")
            else:
                self.refuse(401, "Invalid username or password.")
            return
        with self.server.lock:
            is_there = name in self.server.repositories
            private = fields.get("private") or fields.get("visibility") == "private"
            if not is_there:
                self.server.repositories[name] = Repository(private=bool(private))
        answer = {"url": f"{self.server.url}/{name}", "name": name}
        self.answer(
            answer | ({"error": "You already created this model repo"} if is_there else {}),
            status=409 if is_there else 200,
        )

    def large(self, digest: str, body: bytes) -> None:
        if hashlib.sha256(body).hexdigest() != digest:
            self.refuse(400, "not what was announced")
            return
        self.server.large[digest] = body
        self.server.sent_bytes += len(body)
        self.answer({})

    def batch(self, name: str, fields: dict[str, Any]) -> None:
        if self.repository(name) is None:
            return
        if not self.may_write:
            self.refuse(403, "you need write access to this repository")
            return
        objects = []
        for one in fields["objects"]:
            entry = {"oid": one["oid"], "size": one["size"]}
            if one["oid"] not in self.server.large:
                entry["actions"] = {"upload": {"href": f"{self.server.url}/large/{one['oid']}"}}
            objects.append(entry)
        self.answer({"transfer": "basic", "objects": objects})

    def model(self, name: str, verb: str, revision: str, body: bytes) -> None:
        repository = self.repository(name)
        if repository is None:
            return
        commit = repository.find(revision)
        if commit is None:
            self.refuse(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        elif verb == "revision":
            siblings = [{"rfilename": path} for path in sorted(commit.files)]
            about = {"_id": "0", "id": name, "private": repository.private, "tags": [], "downloads": 0, "likes": 0}
            self.answer(about | {"sha": commit.id, "siblings": siblings, "lastModified": DATE, "createdAt": DATE})
        elif not self.may_write:
            self.refuse(403, "you need write access to this repository")
        elif verb == "preupload":
            files = [
                {"path": one["path"], "uploadMode": "lfs" if LARGE.search(one["path"]) else "regular",
                 "shouldIgnore": False, "oid": None}
                for one in json.loads(body)["files"]
            ]  # fmt: skip
            self.answer({"files": files})
        else:
            self.commit(name, repository, body)

    def commit(self, name: str, repository: Repository, body: bytes) -> None:
        with self.server.lock:
            files, title = dict(repository.head.files), ""
            for line in body.splitlines():
                item = json.loads(line)
                value = item["value"]
                if item["key"] == "header":
                    title = value["summary"]
                    if value.get("parentCommit", repository.head.id) != repository.head.id:
                        self.refuse(412, "A commit has happened since. Please refresh and try again.")
                        return
                elif item["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif item["key"] == "lfsFile":
                    if value["oid"] not in self.server.large:
                        self.refuse(400, f"{value['path']} was not uploaded")
                        return
                    files[value["path"]] = self.server.large[value["oid"]]
                elif item["key"] == "deletedFile":
                    del files[value["path"]]
            made = repository.commit(title, files)
        self.answer({"commitOid": made.id, "commitUrl": f"{self.server.url}/{name}/commit/{made.id}"})

    def resolve(self, name: str, revision: str, path: str) -> None:
        repository = self.repository(name)
        if repository is None:
            return
        commit = repository.find(revision)
        if commit is None:
            self.refuse(404, "Invalid rev id", "RevisionNotFound")
        elif path not in commit.files:
            self.refuse(404, "Entry not found", "EntryNotFound", {"X-Repo-Commit": commit.id})
        else:
            data = commit.files[path]
            headers = {"X-Repo-Commit": commit.id, "ETag": f'"{hashlib.sha256(data).hexdigest()}"'}
            start = re.fullmatch(r"bytes=(\d+)-.*", self.headers.get("Range", ""))
            if start is None:
                self.answer(data, headers=headers)
                return
            at = int(start[1])
            headers["Content-Range"] = f"bytes {at}-{len(data) - 1}/{len(data)}"
            self.answer(data[at:], headers=headers, status=206)
