"""A loop-back server that speaks the part of the hub's API that loading needs, and tiny contents.

    with HubServer(models={"org/tiny": folder}, datasets={"nyu-mll/glue": folder}) as hub:
        subprocess.run([...], env=hub.environment(hf_home))

A data set's folder holds README.md, whose YAML names the configurations, and its Parquet files.
"""

import hashlib
import inspect
import json
import os
import re
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

from datasets import ClassLabel, Dataset, Features, Value
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertTokenizer,
    BertTokenizerFast,
)

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS += ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", ".", "##s"]
README = """---
configs:
- config_name: cola
  data_files:
  - {split: train, path: cola/train-*}
  - {split: validation, path: cola/validation-*}
---
"""
COMMIT = "0123456789abcdef0123456789abcdef01234567"
_RESOLVE = re.compile(r"/(?P<kind>datasets/)?(?P<id>[^/]+/[^/]+)/resolve/[^/]+/(?P<path>.+)")
_API = re.compile(
    r"/api/(?P<kind>models|datasets)/(?P<id>[^/]+/[^/]+)"
    r"(/revision/[^/]+|(?P<tree>/tree/[^/]+)(/(?P<path>.+))?)?"
)


class HubServer:
    """Serves local folders under hub ids; `requests` lists what was asked for."""

    def __init__(
        self, models: dict[str, Path] | None = None, datasets: dict[str, Path] | None = None
    ) -> None:
        self.repositories = {"models": models or {}, "datasets": datasets or {}}
        self.requests: list[str] = []
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "HubServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def environment(self, hf_home: Path) -> dict[str, str]:
        """The environment of a process that takes this server for the hub."""
        return clean_environment(hf_home) | {"HF_ENDPOINT": self.url}


def clean_environment(hf_home: Path) -> dict[str, str]:
    """This process's environment with a cache of its own and no setting of the hub's."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    loopback = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    return kept | loopback | {"HF_HOME": str(hf_home), "HF_HUB_DISABLE_TELEMETRY": "1"}


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        if match := _API.fullmatch(path):
            self._answer_api(match)
        elif match := _RESOLVE.fullmatch(path):
            self._answer_file(match)
        else:
            self._refuse("RepoNotFound")

    def _answer_api(self, match: re.Match[str]) -> None:
        folder = self.hub.repositories[match["kind"]].get(match["id"])
        if folder is None:
            self._refuse("RepoNotFound")
        elif match["tree"] is None:
            entries = _entries(folder, folder, deep=True)
            files = [{"rfilename": e["path"]} for e in entries if e["type"] == "file"]
            self._send_json({"id": match["id"], "sha": COMMIT, "siblings": files, "tags": []})
        elif not (folder / (match["path"] or "")).is_dir():
            self._refuse("EntryNotFound")
        else:
            deep = "recursive=true" in self.path.lower()
            self._send_json(list(_entries(folder, folder / (match["path"] or ""), deep=deep)))

    def _answer_file(self, match: re.Match[str]) -> None:
        kind = "datasets" if match["kind"] else "models"
        folder = self.hub.repositories[kind].get(match["id"])
        if folder is None:
            self._refuse("RepoNotFound")
        elif not (folder / match["path"]).is_file():
            self._refuse("EntryNotFound")
        else:
            content = (folder / match["path"]).read_bytes()
            self._send(HTTPStatus.OK, content, {"ETag": f'"{_git_blob_sha1(content)}"'})

    def _refuse(self, code: str) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": code}
        self._send(HTTPStatus.NOT_FOUND, b"{}", headers)

    def _send_json(self, answer: object) -> None:
        content = json.dumps(answer).encode()
        self._send(HTTPStatus.OK, content, {"Content-Type": "application/json"})

    def _send(self, status: HTTPStatus, content: bytes, headers: dict[str, str]) -> None:
        # A range is asked for when a download resumes, and by readers of Parquet.
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if status == HTTPStatus.OK and wanted:
            first, last = int(wanted[1]), int(wanted[2] or len(content) - 1)
            headers |= {"Content-Range": f"bytes {first}-{last}/{len(content)}"}
            status, content = HTTPStatus.PARTIAL_CONTENT, content[first : last + 1]
        self.send_response(status)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


def _entries(root: Path, folder: Path, *, deep: bool) -> Iterator[dict[str, object]]:
    for entry in sorted(folder.iterdir()):
        name = entry.relative_to(root).as_posix()
        if entry.is_dir():
            yield {"type": "directory", "path": name, "oid": COMMIT, "size": 0}
            if deep:
                yield from _entries(root, entry, deep=True)
        else:
            content = entry.read_bytes()
            oid = _git_blob_sha1(content)
            yield {"type": "file", "path": name, "oid": oid, "size": len(content)}


def _git_blob_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def make_tokenizer() -> BertTokenizer:
    """BERT's tokenizer with 15 words."""
    if "vocab" in inspect.signature(BertTokenizer).parameters:
        return BertTokenizer(vocab={word: index for index, word in enumerate(WORDS)})
    with TemporaryDirectory() as folder:  # transformers 4
        path = Path(folder, "vocab.txt")
        path.write_text("\n".join(WORDS), encoding="utf-8")
        return BertTokenizerFast(vocab_file=str(path))


def make_model(folder: Path) -> None:
    """Saves a tiny BERT with random weights and its tokenizer."""
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)


def make_cola(folder: Path) -> None:
    """Saves a small data set in the form of GLUE's CoLA."""
    label = ClassLabel(names=["unacceptable", "acceptable"])
    features = Features({"sentence": Value("string"), "label": label, "idx": Value("int32")})
    (folder / "cola").mkdir(parents=True)
    (folder / "README.md").write_text(README)
    for split, rows in {"train": 24, "validation": 8}.items():
        sentences = ["The cat sat on the mat .", "Cat the on sat ."] * (rows // 2)
        data = {"sentence": sentences, "label": [1, 0] * (rows // 2), "idx": list(range(rows))}
        table = Dataset.from_dict(data, features=features)
        table.to_parquet(folder / "cola" / f"{split}-00000-of-00001.parquet")
