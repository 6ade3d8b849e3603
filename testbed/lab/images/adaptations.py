"""What the OCI front takes out of containers here because this host cannot give it.

The front itself decides at every container, by asking the kernel; this tells people what
it will decide.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

#: By the kernel's numbers (linux/capability.h), as the front has them (ocifront/host.c).
CAPABILITIES = (
    *("CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID"),
    *("SETPCAP", "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW"),
    *("IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE"),
    *("SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME"),
    *("SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP"),
    *("MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ"),
    *("PERFMON", "BPF", "CHECKPOINT_RESTORE"),
)
#: What Podman asks for each container (``default_ulimits`` of containers.conf(5)).
_ASKED = {"open files": 1048576, "processes": 4194304}
_LIMITS = {"open files": resource.RLIMIT_NOFILE, "processes": resource.RLIMIT_NPROC}
#: What kubelet asks for the most important containers (KubeletOOMScoreAdj and its kin).
_SCORE = -999


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What a process may hand on to containers."""

    #: Bits of the capabilities that a program started as root can have.
    bounding: int
    #: Number of the kernel's last capability.
    last: int
    #: Hard limits by the names of ``_ASKED``; -1 is none.
    limits: Mapping[str, int]
    oom_score: int


def look(proc: Path = Path("/proc")) -> Host:
    """Look at the host as this process has it."""
    status = (proc / "self/status").read_text()
    bounding = next(
        int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapBnd:")
    )
    return Host(
        bounding=bounding,
        last=int((proc / "sys/kernel/cap_last_cap").read_text()),
        limits={name: resource.getrlimit(number)[1] for name, number in _LIMITS.items()},
        oom_score=int((proc / "self/oom_score_adj").read_text()),
    )


def of(host: Host) -> list[str]:
    """Return one line for each thing that containers do not get on such a host."""
    lines = []
    known = range(min(host.last + 1, len(CAPABILITIES)))
    lacking = [CAPABILITIES[number] for number in known if not host.bounding >> number & 1]
    if lacking:
        names = ", ".join(f"CAP_{name}" for name in lacking)
        lines.append(f"{names}: not given on this host; privileged containers run without it")
    if "SYS_RESOURCE" not in lacking:
        return lines  # with it limits are raised and scores lowered at will
    for name, asked in _ASKED.items():
        limit = host.limits[name]
        if 0 <= limit < asked:
            lines.append(f"{name}: at most {limit:,} here; containers that ask for more get that")
    if host.oom_score > _SCORE:
        lines.append(
            f"OOM score: no less than {host.oom_score} here; containers that ask for less get that"
        )
    return lines
