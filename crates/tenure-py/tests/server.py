"""A private PostgreSQL for the tests, and a proxy that can go silent."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, List, Optional

import psycopg


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def binaries() -> Path:
    places = [os.environ.get("TENURE_PG_BIN", "")]
    if shutil.which("pg_config"):
        told = subprocess.run(["pg_config", "--bindir"], stdout=subprocess.PIPE, text=True)
        places.append(told.stdout.strip())
    places += sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)
    places += sorted(glob.glob("/usr/pgsql-*/bin") + glob.glob("/opt/homebrew/opt/postgresql@*/bin"))
    for place in places:
        if place and (Path(place) / "initdb").exists() and (Path(place) / "postgres").exists():
            return Path(place)
    raise RuntimeError("there is no PostgreSQL server here; run scripts/setup.sh core")


#: The login that is let in by its password alone.
WITH_PASSWORD = "rotating"


class Server:
    """One server for a whole run; each test has a database of its own."""

    def __init__(self) -> None:
        self.port = free_port()
        self.home = Path(tempfile.mkdtemp(prefix="tenure-py-"))
        self.home.chmod(0o755)
        data = self.home / "data"
        data.mkdir(mode=0o700)
        self._account: Optional[str] = None
        if os.geteuid() == 0:
            # PostgreSQL refuses root.
            self._account = "postgres" if "postgres" in {u.pw_name for u in pwd.getpwall()} else "nobody"
            for place in (self.home, data):
                shutil.chown(place, self._account)
        bin = binaries()
        self._run([bin / "initdb", "-D", data, "-U", "postgres", "--auth=trust", "--locale=C", "-E", "UTF8"])
        with open(data / "postgresql.conf", "a") as conf:
            conf.write(
                f"listen_addresses = '127.0.0.1'\nport = {self.port}\nunix_socket_directories = '{self.home}'\n"
                "fsync = off\nmax_connections = 200\ndynamic_shared_memory_type = mmap\n"
                "log_disconnections = on\nlog_connections = on\npassword_encryption = 'scram-sha-256'\n"
            )
        # One login must show its password; the first line that fits decides.
        hba = data / "pg_hba.conf"
        hba.write_text(f"host all {WITH_PASSWORD} 127.0.0.1/32 scram-sha-256\n" + hba.read_text())
        self._ctl = bin / "pg_ctl"
        self._data = data
        self.log = self.home / "log"
        self._run([self._ctl, "-s", "-w", "-D", data, "-l", self.log, "start"])
        self._made = 0

    def _run(self, command: List[Any]) -> None:
        options: Any = {"user": self._account} if self._account else {}
        if self._account:
            options["group"] = pwd.getpwnam(self._account).pw_gid
            options["extra_groups"] = []
        subprocess.run(
            [str(word) for word in command], check=True, cwd="/", stdout=subprocess.DEVNULL, timeout=60, **options
        )

    def dsn(self, database: str, port: Optional[int] = None, user: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{port or self.port}/{database}"

    def database(self) -> str:
        self._made += 1
        name = f"test_{os.getpid()}_{self._made}"
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as admin:
            admin.execute(f"create database {name}")
        return self.dsn(name)

    def unix_dsn(self, dsn: str) -> str:
        """The same database, through the server's Unix socket."""
        return f"host={self.home} port={self.port} user=postgres dbname={dsn.rsplit('/', 1)[1]}"

    def tls(self, on: bool) -> Path:
        """Lets sessions be encrypted, or not any more; returns the certificate that clients must trust."""
        root = self.home / "root.crt"
        if not root.exists():
            self._certify(root)
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as admin:
            admin.execute(f"alter system set ssl = {'on' if on else 'off'}")
            admin.execute("select pg_reload_conf()")
        until = time.monotonic() + 10
        while True:
            with psycopg.connect(self.dsn("postgres")) as session:
                if session.pgconn.ssl_in_use == on:
                    return root
            assert time.monotonic() < until, "the server does not take its new setting"
            time.sleep(0.01)

    def _certify(self, root: Path) -> None:
        """An authority, and the server's own certificate, which names its address."""
        names = self.home / "names"
        names.write_text("subjectAltName = IP:127.0.0.1\nbasicConstraints = CA:FALSE\n")
        key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2".split()
        server, request = self._data / "server.key", self.home / "server.csr"
        for words in (
            ["req", "-x509", *key, "-subj", "/CN=tests", "-keyout", self.home / "root.key", "-out", root],
            ["req", *key[:-2], "-subj", "/CN=127.0.0.1", "-keyout", server, "-out", request],
            ["x509", "-req", "-in", request, "-CA", root, "-CAkey", self.home / "root.key", "-CAcreateserial",
             "-days", "2", "-extfile", names, "-out", self._data / "server.crt"],
        ):
            subprocess.run(
                ["openssl", *map(str, words)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        server.chmod(0o600)
        if self._account:
            for file in (server, self._data / "server.crt"):
                shutil.chown(file, self._account)

    def stop(self) -> None:
        try:
            self._run([self._ctl, "-s", "-w", "-m", "immediate", "-D", self._data, "stop"])
        finally:
            shutil.rmtree(self.home, ignore_errors=True)


class Proxy:
    """Passes bytes between a port of its own and the server, until it is told to go silent."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._silent = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.connections: List[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self._silent.is_set():
                self.connections.append(near)  # Accepted, and never answered.
                continue
            far = socket.create_connection(("127.0.0.1", self._to))
            self.connections += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while True:
                data = source.recv(65536)
                if self._silent.is_set():
                    return  # The connection stays open and carries nothing.
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)
        except OSError:
            pass

    def partition(self) -> None:
        self._silent.set()

    def close(self) -> None:
        self._listener.close()
        for connection in self.connections:
            connection.close()
