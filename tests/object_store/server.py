import ctypes
import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from functools import cached_property
from pathlib import Path
from typing import Any, Self

ACCESS_KEY = "test:tester"
SECRET_KEY = "testing"
REGION = "us-east-1"

_SERVICES = ("account", "container", "object", "proxy")
_PIPELINE = ("catch_errors", "gatekeeper", "listing_formats", "s3api", "tempauth", "copy", "slo", "dlo")
_FILTER_SETTINGS = {
    "s3api": f"location = {REGION}\nmin_segment_size = 1\n",
    "tempauth": "user_test_tester = testing .admin\n",
}
_SECONDS_TO_START = 120.0
_MAKE_RINGS = """
import json, sys
from swift.common.ring import RingBuilder
folder, ports = sys.argv[1], json.loads(sys.argv[2])
for name in ("account", "container", "object"):
    ring = RingBuilder(2, 1, 0)
    ring.add_dev({"region": 1, "zone": 1, "ip": "127.0.0.1", "port": ports[name], "device": "d1", "weight": 1})
    ring.rebalance()
    ring.get_ring().save(f"{folder}/{name}.ring.gz")
"""


class S3Server:
    """Runs while the `with` block lasts; `endpoint` is its URL."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="swift-"))
        self._reserved = {name: reserved_port() for name in _SERVICES}
        self._ports = {name: each.getsockname()[1] for name, each in self._reserved.items()}
        self._processes: list[subprocess.Popen[bytes]] = []

    @cached_property
    def boto3(self) -> Any:
        import boto3

        keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY}
        return boto3.client("s3", endpoint_url=self.endpoint, region_name=REGION, **keys)

    @property
    def port(self) -> int:
        return self._ports["proxy"]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        try:
            self._configure()
            scripts = Path(sys.executable).parent
            for name in _SERVICES:
                command = [str(scripts / f"swift-{name}-server"), str(self._folder / f"{name}.conf")]
                with open(self._folder / f"{name}.log", "wb") as log:
                    output = {"stdout": log, "stderr": subprocess.STDOUT}
                    self._processes.append(subprocess.Popen(command, preexec_fn=_end_with_parent, **output))
            self._wait()
        except BaseException:
            self.stop()
            raise
        finally:
            for each in self._reserved.values():
                each.close()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if "boto3" in self.__dict__:
            self.boto3.close()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _configure(self) -> None:
        devices = self._folder / "node"
        (devices / "d1").mkdir(parents=True)
        self._write(
            "swift.conf",
            "[swift-hash]\nswift_hash_path_prefix = a\nswift_hash_path_suffix = b\n"
            "[storage-policy:0]\nname = only\ndefault = yes\n",
        )
        common = (
            f"[DEFAULT]\nbind_ip = 127.0.0.1\nworkers = 0\nuser = {getpass.getuser()}\nswift_dir = {self._folder}\n"
            f"devices = {devices}\nmount_check = false\nlog_level = ERROR\nfallocate_reserve = 0\n"
        )
        for name in ("account", "container", "object"):
            self._write(
                f"{name}.conf",
                f"{common}bind_port = {self._ports[name]}\n[pipeline:main]\npipeline = {name}-server\n"
                f"[app:{name}-server]\nuse = egg:swift#{name}\n",
            )
        command = [sys.executable, "-c", _MAKE_RINGS, str(self._folder), json.dumps(self._ports)]
        subprocess.run(command, check=True)  # elsewhere, because Swift brings its own event loop along
        filters = "".join(
            f"[filter:{name}]\nuse = egg:swift#{name}\n{_FILTER_SETTINGS.get(name, '')}" for name in _PIPELINE
        )
        self._write(
            "proxy.conf",
            f"{common}bind_port = {self.port}\n[pipeline:main]\npipeline = {' '.join(_PIPELINE)} proxy-server\n"
            f"{filters}[app:proxy-server]\nuse = egg:swift#proxy\naccount_autocreate = true\n",
        )

    def _write(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text)

    def _wait(self) -> None:
        deadline = time.monotonic() + _SECONDS_TO_START
        for name, port in self._ports.items():
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    if time.monotonic() > deadline or any(process.poll() is not None for process in self._processes):
                        log = (self._folder / f"{name}.log").read_text(errors="replace")
                        raise RuntimeError(f"the {name} server did not start:\n{log[-3000:]}") from None
                    time.sleep(0.05)


def _end_with_parent() -> None:
    """Asks the kernel to end this process when the one that started it is gone, killed tests included."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def reserved_port() -> socket.socket:
    """Returns a socket that keeps a port from others until a server listens there, which reuses the address."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


def aws_environment(endpoint: str, *, secret: str = SECRET_KEY) -> dict[str, str]:
    keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": secret}
    place = {"AWS_REGION": REGION, "AWS_DEFAULT_REGION": REGION, "AWS_ENDPOINT_URL": endpoint}
    nothing_else = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    return keys | place | nothing_else | {"AWS_EC2_METADATA_DISABLED": "true"}
