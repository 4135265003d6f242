"""Run the tests of storage with PostgreSQL too: `python tests/storage/with_postgres.py [arguments of pytest]`.

Starts a server of its own from Debian's binaries (`apt-get install postgresql`), in a temporary directory and on a
socket in it, and stops it at the end.
"""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def binary(name: str) -> str:
    """Of the newest version; Debian keeps most of them off the PATH."""
    found = sorted(
        Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: float(path.parents[1].name), reverse=True
    )
    path = str(found[0]) if found else shutil.which(name)
    if path is None:
        raise SystemExit(
            f"with_postgres: there is no {name} here; install PostgreSQL, as by apt-get install postgresql"
        )
    return path


def user() -> str | None:
    """Whom the server runs as: it refuses to be root."""
    if os.getuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of an empty database on a new server."""
    with tempfile.TemporaryDirectory(prefix="takg-pg-") as name:
        directory, owner = Path(name), user()
        if owner is not None:
            shutil.chown(directory, owner)
        data = directory / "data"
        initdb = [binary("initdb"), "--pgdata", str(data), "--username", "takg", "--auth", "trust"]
        subprocess.run(
            [*initdb, "--encoding", "UTF8", "--no-locale", "--no-sync"],
            user=owner,
            cwd=directory,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        with (directory / "log").open("w") as log:
            server = subprocess.Popen(
                [
                    binary("postgres"),
                    "-D",
                    str(data),
                    "-k",
                    str(directory),
                    "-c",
                    "listen_addresses=",
                    "-c",
                    "fsync=off",
                ],
                user=owner,
                cwd=directory,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            ready = [binary("pg_isready"), "--quiet", "--host", str(directory), "--username", "takg"]
            deadline = time.monotonic() + 60
            while subprocess.run([*ready, "--dbname", "postgres"]).returncode != 0:
                if server.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"with_postgres: the server did not start:\n{(directory / 'log').read_text()}")
                time.sleep(0.05)
            yield f"postgresql://takg@/postgres?host={directory}"
        finally:
            server.send_signal(signal.SIGINT)  # a fast shutdown
            server.wait(60)


def main() -> int:
    with postgres() as url:
        arguments = sys.argv[1:] or [str(Path(__file__).parent)]
        command = [sys.executable, "-m", "pytest", *arguments]
        return subprocess.run(command, env=os.environ | {"TAKG_TEST_POSTGRES": url}).returncode


if __name__ == "__main__":
    sys.exit(main())
