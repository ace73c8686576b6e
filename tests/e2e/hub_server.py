#!/usr/bin/env python3
"""A Hugging Face hub on loopback, for tests of quern pull: hub_server.py FOLDER [BIG_FILE]

Serves the API of a model's files and their content as the hub does: LFS files by a redirect with X-Linked-Etag and X-Linked-Size, others at
once with the SHA-1 of their git blob. The name of the repository t/NAME says how it misbehaves: the table at the end. A second port
plays the content delivery network. FOLDER gets the file `ports` when both listen, and `log` with a line for each request. With TLS_CERT and
TLS_KEY in the environment, a third port speaks TLS. BIG_FILE is served by sendfile as t/big."""
import hashlib, json, os, random, socket, ssl, struct, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NEXT_COMMIT = "fedcba9876543210fedcba9876543210fedcba98"
TOKEN = "hf_secret"
folder = sys.argv[1]
here = os.path.dirname(os.path.abspath(__file__))
lock = threading.Lock()
seen = {}  # how many requests of a kind there were, for those that fail at first


def count(key):
    with lock:
        seen[key] = seen.get(key, 0) + 1
        return seen[key]


def content(seed, size):
    return random.Random(seed).randbytes(size)


class File:
    def __init__(self, data=None, path=None, lfs=True):
        self.data, self.path, self.lfs = data, path, lfs
        self.size = len(data) if path is None else os.path.getsize(path)
        if not lfs:
            self.hash = hashlib.sha1(b"blob %d\0" % self.size + data).hexdigest()
        elif path is None:
            self.hash = hashlib.sha256(data).hexdigest()
        else:
            with open(path, "rb") as file:
                self.hash = hashlib.file_digest(file, "sha256").hexdigest()


golden = os.path.join(here, "..", "golden")
small = File(content(1, 3 << 20))
FILES = {
    "m-Q1_0.gguf": small,
    "m-Q8_0.gguf": File(content(2, 6 << 20)),
    "m-F16.gguf": File(content(3, 1 << 20)),
    "mmproj-F16.gguf": File(content(4, 1000)),
    "sub/dir/x-Q2_0.gguf": File(content(5, 100000)),
    "parts/s-Q4_K_M-00001-of-00003.gguf": File(content(6, 70000)),
    "parts/s-Q4_K_M-00002-of-00003.gguf": File(content(7, 80000)),
    "parts/s-Q4_K_M-00003-of-00003.gguf": File(content(8, 90000)),
    "config.json": File(b'{"a": 1}\n', lfs=False),
    "empty.txt": File(b"", lfs=False),
}
MODELS = {  # files that are models
    "parrot-F16.gguf": File(open(os.path.join(golden, "parrot.gguf"), "rb").read()),
    "qwen3-Q1_0.gguf": File(open(os.path.join(golden, "qwen3.q1_0.gguf"), "rb").read()),
}
# A file of an architecture that drafts: one key, no tensors.
dflash = File(b"GGUF" + struct.pack("<IQQQ20sIQ6s", 3, 0, 1, 20, b"general.architecture", 8, 6, b"dflash"))
OTHERS = {"parrot-F16.gguf": MODELS["parrot-F16.gguf"], "qwen3-Q1_0.gguf": small}  # of t/revisions, except on branch main
REVISIONS = {"main": COMMIT, COMMIT: COMMIT, "v1.0": NEXT_COMMIT, "refs/pr/1": NEXT_COMMIT, NEXT_COMMIT: NEXT_COMMIT, "abc": "a" * 40}
ONE = {"m-Q1_0.gguf": small}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        with lock, open(os.path.join(folder, "log"), "a") as log:
            print(self.server.role, self.command, self.path, "token" if "Authorization" in self.headers else "-",
                  self.headers.get("Range", "-"), file=log)

    def answer(self, status, headers=(), body=b""):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        if "Content-Length" not in dict(headers):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def fail(self, status, code, message, headers=()):
        self.answer(status, {"X-Error-Code": code, "X-Error-Message": message, **dict(headers)}, message.encode())

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        try:
            self.handle_path()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def handle_path(self):
        parts = unquote(urlsplit(self.path).path).lstrip("/").split("/")
        if self.server.role == "cdn":
            return self.send_content(parts[0], REPOS[parts[0]][0][parts[1].replace("|", "/")])
        api = parts[:2] == ["api", "models"]
        owner, name = (parts[2:4] if api else parts[:2])
        if owner == "old":  # a repository that was renamed
            return self.answer(307, {"Location": self.path.replace("/old/", "/t/", 1)})
        if owner != "t" or name not in REPOS:
            if self.headers.get("Authorization") == "Bearer " + TOKEN:
                return self.fail(404, "RepoNotFound", "Repository not found")
            return self.fail(401, "RepoNotFound", "Invalid username or password.")
        files, how = REPOS[name]
        if how == "revisions" and ({COMMIT, "main"} & set(parts)):
            name, files = "revisions-main", MODELS
        if how == "private" and self.headers.get("Authorization") != "Bearer " + TOKEN:
            return self.fail(401, "RepoNotFound", "Invalid username or password.")
        if api and parts[4] == "tree":
            return self.send_tree(files)
        if api:
            return self.send_list(name, files, how, "/".join(parts[5:]))
        path = "/".join(parts[4:])
        if parts[2] != "resolve" or path not in files:
            return self.fail(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": COMMIT})
        self.send_file(name, path, files[path], how)

    def send_list(self, name, files, how, revision):
        siblings = []
        for path, file in files.items():
            lfs = {"lfs": {"sha256": file.hash, "size": file.size, "pointerSize": 130}} if file.lfs else {}
            siblings.append({"rfilename": path, "size": file.size, "blobId": hashlib.sha1(path.encode()).hexdigest() if file.lfs else file.hash, **lfs})
        if how == "plain-list":  # a mirror that does not list sizes and hashes
            siblings = [{"rfilename": s["rfilename"]} for s in siblings]
        if how == "no-part":
            siblings = siblings[:-1]
        if how == "list-lies":
            siblings[0]["lfs"]["sha256"] = "0" * 64
        siblings += [{"rfilename": path} for path in EVIL.get(name, [])]
        commit = REVISIONS.get(revision) if how == "revisions" else self.commit(how)
        if not commit:
            return self.fail(404, "RevisionNotFound", "Invalid rev id: " + revision)
        text = json.dumps({"id": "t/" + name, "sha": commit, "siblings": siblings})
        text = {"deep": "[" * 100000, "not-json": "<html>", "endless": '{"a": "' + "x" * (9 << 20) + '"}', "no-list": "{}",
                "bad-commit": '{"sha": "../../../../etc", "siblings": []}', "empty": ""}.get(how, text)
        if how == "busy-list" and count(name) <= 1:
            return self.fail(429, "RateLimit", "Too many", {"Retry-After": "1"})
        self.answer(200, {"Content-Type": "application/json"}, text.encode())

    def send_tree(self, files):  # what snapshot_download of huggingface_hub requests
        entries = []
        for path, file in files.items():
            lfs = {"lfs": {"oid": file.hash, "size": file.size, "pointerSize": 130}} if file.lfs else {}
            entries.append({"type": "file", "path": path, "size": file.size, "oid": hashlib.sha1(path.encode()).hexdigest() if file.lfs else file.hash, **lfs})
        self.answer(200, {"Content-Type": "application/json"}, json.dumps(entries).encode())

    @staticmethod
    def commit(how):
        moved = how == "moves" and os.path.exists(os.path.join(folder, "moved"))
        return NEXT_COMMIT if moved else COMMIT

    def send_file(self, name, path, file, how):
        etag = {"evil-etag": "../../../../etc/passwd", "weak-etag": "abc"}.get(how, file.hash)
        size = {"vast": str(1 << 62), "negative": "-1", "words": "many"}.get(how, str(file.size))
        commit = {"other-commit": NEXT_COMMIT, "no-commit": ""}.get(how, self.commit(how))
        if how == "revisions":
            commit = unquote(urlsplit(self.path).path).split("/")[4]
        if how == "gated":
            return self.fail(403, "GatedRepo", "Access to model t/gated is restricted", {"X-Repo-Commit": commit})
        if how == "gated-401":
            return self.fail(401, "GatedRepo", "Access to model is restricted", {"X-Repo-Commit": commit})
        if how == "forbidden":
            return self.fail(403, "", "no")
        if how == "loop":
            return self.answer(302, {"Location": self.path})
        if how in ("busy", "busy-long", "busy-date") and self.command == "GET" and count(name) <= 2:
            wait = {"busy": "1", "busy-long": "4000",
                    "busy-date": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 2))}[how]
            return self.fail(429, "RateLimit", "Too many", {"Retry-After": wait})
        if how == "trouble" and self.command == "GET" and count(name) <= 1:
            return self.fail(503, "", "overloaded")
        if how == "down":
            return self.fail(500, "", "broken")
        headers = {"X-Repo-Commit": commit, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
        if not file.lfs:
            if self.command == "HEAD":
                return self.answer(200, {**headers, "Content-Length": size})
            return self.answer(200, headers, file.data)
        target = f"http://{self.server.cdn}/{name}/{path.replace('/', '|')}?signature=a%2Bb"
        if how == "away":
            target = target.replace("127.0.0.1", "localhost")
        if how == "nowhere":
            target = "http://127.0.0.1:1/x"
        if how == "ftp":
            target = "ftp://127.0.0.1/x"
        self.answer(302, {**headers, "X-Linked-Etag": f'W/"{etag}"' if how == "weak" else f'"{etag}"', "X-Linked-Size": size, "Location": target})

    # ---- Content ----

    def send_content(self, name, file):
        how, start, n = REPOS[name][1], 0, file.size
        wanted = self.headers.get("Range")
        if wanted and how == "no-range":
            wanted = None
        if wanted and how == "no-resume":
            return self.answer(416, {"Content-Range": f"bytes */{n}"})
        if wanted:
            start = int(wanted[len("bytes="):].split("-")[0])
        if start >= n > 0:
            return self.answer(416, {"Content-Range": f"bytes */{n}"})
        said = start + 1 if how == "bad-range" else start
        headers = {"Content-Range": f"bytes {said}-{n - 1}/{n}"} if wanted else {}
        if file.path:
            return self.send_big(file, start, n, headers)
        data = file.data[start:]
        if how == "wrong":
            data = data[:-1] + bytes([data[-1] ^ 1])
        if how == "other-length":
            data = data[:-10]
        if how == "longer":
            data += b"more"
        self.close_connection = how in ("cut", "cut-always", "closed", "longer", "stall")
        self.send_response(206 if wanted else 200)
        for key, value in headers.items():
            self.send_header(key, value)
        if how not in ("closed", "longer"):
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.send_pieces(name, data, how)

    def send_pieces(self, name, data, how):
        if how in ("cut", "closed"):
            data = data[: 1200000]
        elif how == "cut-always":
            data = b""
        elif how == "stall" and count(name) <= 1:
            self.wfile.write(data[: len(data) // 2])
            time.sleep(4)
            return
        elif how == "slow":
            for i in range(0, len(data), 1 << 16):
                self.wfile.write(data[i : i + (1 << 16)])
                time.sleep(float(os.environ.get("SLOW", "0.03")))
            return
        self.wfile.write(data)

    def send_big(self, file, start, n, headers):
        self.send_response(206 if headers else 200)
        for key, value in {**headers, "Content-Length": str(n - start)}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.flush()
        with open(file.path, "rb") as source:
            while start < n:
                start += os.sendfile(self.connection.fileno(), source.fileno(), start, n - start)


EVIL = {
    "evil": ["../../../../tmp/evil.gguf"],
    "evil2": ["/etc/evil.gguf"],
    "evil3": ["a\\b.gguf"],
    "evil4": ["a\x1b[1m.gguf"],
    "evil5": ["a\x9b1m.gguf"],
    "odd": ["a\\b.txt", "../x.txt", "a//b", ""],
}
REPOS = {name: (ONE, name) for name in (
    "gated", "gated-401", "forbidden", "loop", "busy", "busy-long", "busy-date", "busy-list", "trouble", "down", "away", "nowhere", "ftp", "no-range",
    "no-resume", "bad-range", "wrong", "other-length", "longer", "cut", "cut-always", "closed", "stall", "slow", "vast", "negative", "words",
    "evil-etag", "weak-etag", "weak", "other-commit", "no-commit", "plain-list", "list-lies", "deep", "not-json", "endless", "no-list",
    "bad-commit", "empty", "private", "evil", "evil2", "evil3", "evil4", "evil5", "odd")}
REPOS["good-gguf"] = (FILES, "good")
REPOS["devices"] = ({name: small for name in ("aux.gguf", "sub/m-F16.gguf:x.gguf", "end./m.gguf")}, "good")  # for Windows
REPOS["models"] = (MODELS, "models")
REPOS["revisions"] = (OTHERS, "revisions")
REPOS["revisions-main"] = (MODELS, "good")
REPOS["parrot"] = ({"parrot-F16.gguf": MODELS["parrot-F16.gguf"]}, "good")
REPOS["moves"] = (FILES, "moves")
REPOS["no-part"] = ({path: file for path, file in FILES.items() if path.startswith("parts/")}, "no-part")
REPOS["long-name"] = ({"n" * 250 + ".gguf": small}, "long-name")
REPOS["none"] = ({"config.json": FILES["config.json"]}, "none")
REPOS["unreadable"] = ({"m-IQ3_XXS.gguf": small, "m-IQ2_S.gguf": small}, "unreadable")
REPOS["drafters"] = ({"parrot-F16.gguf": MODELS["parrot-F16.gguf"], "parrot-DFlash-Q4_0.gguf": dflash, "MTP/parrot-Q8_0-MTP.gguf": dflash}, "good")
REPOS["hidden"] = ({"parrot-F16.gguf": MODELS["parrot-F16.gguf"], "x-Q4_0.gguf": dflash}, "good")
REPOS["only-drafter"] = ({"m-DFlash-Q8_0.gguf": dflash}, "good")
REPOS["same"] = ({"a-Q4_0.gguf": small, "b-Q4_0.gguf": small}, "same")
if len(sys.argv) > 2:
    REPOS["big"] = ({"big-Q1_0.gguf": File(path=sys.argv[2])}, "big")


class Server(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], OSError):  # a client that was killed, or does not trust the certificate
            super().handle_error(request, client_address)


def serve(role, cdn=None):
    server = Server(("127.0.0.1", 0), Handler)
    server.role, server.cdn, server.daemon_threads = role, cdn, True
    if role == "tls":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(os.environ["TLS_CERT"], os.environ["TLS_KEY"])
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return "127.0.0.1:%d" % server.server_address[1]


cdn = serve("cdn")
ports = [serve("hub", cdn), cdn] + ([serve("tls", cdn)] if "TLS_CERT" in os.environ else [])
with open(os.path.join(folder, "ports.part"), "w") as out:
    print(*ports, file=out)
os.rename(os.path.join(folder, "ports.part"), os.path.join(folder, "ports"))
while True:  # ends with the test that started it
    time.sleep(0.5)
    if os.getppid() == 1:
        break
