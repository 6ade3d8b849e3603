"""What an image holds itself, and what the host lends it.

The image's root is nearly empty; programs and libraries are the host's, bound one
folder at a time, so that a container sees nothing of the host that is not named here:
no home folder, no /run, /var or /tmp.
"""

from __future__ import annotations

from pathlib import Path

from testbed.lab.images.archive import Entry
from testbed.lab.images.model import Bind

#: Where environments are bound; one folder each.
ENVIRONMENTS = "/opt/testbed"

_FOLDERS = (
    *("dev", "etc", "etc/ssl", "opt", "opt/testbed", "proc", "root", "run", "sys"),
    *("usr", "usr/bin", "usr/include", "usr/lib", "usr/lib64", "usr/libexec"),
    *("usr/local", "usr/local/bin", "usr/local/vgpu", "usr/sbin", "usr/share"),
    *("var", "var/lib", "var/log"),
)
_LINKS = {
    "bin": "usr/bin",
    "sbin": "usr/sbin",
    "lib": "usr/lib",
    # The loader named in every program is below /lib64.
    "lib64": "usr/lib64",
    "var/run": "/run",
}
_FILES = {
    # getpass.getuser() and with it torch.compile fail for a user without a line.
    "etc/passwd": (
        "root:x:0:0:root:/root:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    ),
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
_LENT = (
    *("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib64", "/usr/libexec", "/usr/share"),
    "/usr/include",  # torch.compile calls the host's compiler
    "/etc/alternatives",  # links of /usr/bin lead through it
    "/etc/ssl/certs",
    "/etc/pki/ca-trust/extracted",  # where Fedora's /etc/ssl/certs leads
)


def entries() -> list[Entry]:
    """Return the root file system of an image."""
    return [
        *(Entry(name=name) for name in _FOLDERS),
        Entry(name="tmp", mode=0o1777),
        Entry(name="var/tmp", mode=0o1777),
        *(Entry(name=name, mode=0o777, target=target) for name, target in _LINKS.items()),
        *(Entry(name=name, mode=0o644, data=text.encode()) for name, text in _FILES.items()),
    ]


def lent(host: Path = Path("/")) -> list[Bind]:
    """Return the binds of the allow-list, as far as the host has the folders."""
    sources = [(host / path.lstrip("/"), path) for path in _LENT]
    return [Bind(source=source, destination=path) for source, path in sources if source.is_dir()]


def env(environment: str = "") -> dict[str, str]:
    """Return the variables of an image that has an environment of that name."""
    folders = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    if environment:
        folders.insert(0, f"{ENVIRONMENTS}/{environment}/bin")
    return {
        "PATH": ":".join(folders),
        # A user without a home in /etc/passwd would get "/", where nothing can be written.
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
    }
