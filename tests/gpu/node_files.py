"""Give one card to a stand-in of a kind node, and look whether it is usable there.

``sudo python3 tests/gpu/node_files.py [FILE]`` from the repository's root, with msgspec
and PyYAML and with ``nvidia-ctk`` 1.13 or newer. The stand-in is a folder with a shell and
a C library in a mount namespace of its own: it gets the mounts that the plan for a kind
node names, a /dev and a /proc as a privileged container has them, and then the plan's
scripts, twice. Nothing of the machine is changed. Three times: with /proc/driver/nvidia as
the engine leaves it, as toolkits before 1.18 mask it, and as later ones do. Prints JSON;
exit status 1 if the card cannot be used, another's device node is left, or the control
(the mounts without the scripts) works as well.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from testbed.card.spec import CardSpec
from testbed.lab.cluster.kind import gpu, gpu_host
from testbed.lab.cluster.kind.gpu_cards import RealCard, masked

PROGRAMS = "cat grep ldconfig ln mkdir mount printf rm sed sh stat test umount"
#: A card that is another node's; its minor number is used by no real card.
OTHER = RealCard(index=99, uuid="GPU-00000000-0000-0000-0000-000000000000", name="x", minor=99)
VARIANTS = ("as it is", "masked folder", "masked params")
_HIDDEN = "ModifyDeviceFiles: 0\n"


def copied(root: Path, program: str) -> None:
    """Copy a program and the libraries that it names to the same places below a folder."""
    found = shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin")
    if found is None:
        return  # a built-in of the shell
    place(root, Path(found))
    if Path(f"{found}.real").exists():  # Ubuntu's ldconfig is a script
        place(root, Path(f"{found}.real"))
        shutil.copy(f"{found}.real", root / found[1:])
    libraries(root, found)


def libraries(root: Path, program: str) -> None:
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    for word in listed.split():
        if word.startswith("/") and Path(word).is_file():
            place(root, Path(word))


def place(root: Path, path: Path) -> None:
    target = root / str(path)[1:]
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)


def bind(source: str, target: Path) -> None:
    if Path(source).is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    run(["mount", "--bind", source, str(target)])
    run(["mount", "-o", "remount,bind,ro", str(target)])


def devices(root: Path, paths: Iterable[str]) -> None:
    """Make the device nodes that the machine has, and one of another's card."""
    folder = root / "dev"
    folder.mkdir(exist_ok=True)
    for path in map(Path, paths):
        device(root / str(path)[1:], path)
    device(folder / f"nvidia{OTHER.minor}", Path("/dev/null"))


def device(target: Path, source: Path) -> None:
    status = source.stat()
    target.parent.mkdir(parents=True, exist_ok=True)
    try:  # as an engine makes them
        os.mknod(target, status.st_mode, status.st_rdev)
        target.chmod(status.st_mode & 0o777)
    except PermissionError:  # in a user's namespace: as toolkits bind them
        target.touch()
        run(["mount", "--bind", str(source), str(target)])


def proc(root: Path, driver: Path | None) -> None:
    """Lay down /proc; a driver's part of it may be a folder."""
    folder = root / "proc"
    try:
        run(["mount", "-t", "proc", "proc", str(folder)])
    except subprocess.CalledProcessError:  # a user's namespace may only show what is there
        run(["mount", "--rbind", "/proc", str(folder)])
    if driver is not None:
        run(["mount", "-t", "tmpfs", "tmpfs", str(folder / "driver")])
        shutil.copytree(driver, folder / "driver/nvidia")


def mask(root: Path, variant: str) -> None:
    proc = root / "proc/driver/nvidia"
    if variant == "masked folder":
        run(["mount", "-t", "tmpfs", "tmpfs", str(proc)])
        (proc / "params").write_text(_HIDDEN)
    elif variant == "masked params":
        hidden = root / "params"
        hidden.write_text(_HIDDEN)
        run(["mount", "--bind", str(hidden), str(proc / "params")])


def run(argv: list[str]) -> None:
    subprocess.run(argv, check=True, capture_output=True, text=True)


def inside(root: Path, *argv: str) -> dict[str, Any]:
    path = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
    done = subprocess.run(
        ["chroot", str(root), *argv],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=path,
    )
    return {"code": done.returncode, "out": done.stdout.strip(), "err": done.stderr.strip()[-800:]}


def node(
    root: Path, plan: gpu.NodeGpus, variant: str, dev: Path, driver: Path | None
) -> dict[str, Any]:
    """Make the stand-in, run what is run in a node, and tell what is seen there."""
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True)
        if Path("/", name).is_symlink():
            (root / name).symlink_to(f"usr/{name}")
    for folder in ("proc", "run", "tmp", "etc", "bin", "sbin"):
        (root / folder).mkdir(exist_ok=True)
    for program in PROGRAMS.split():
        copied(root, program)
    for program in ("nvidia-smi", "nvidia-ctk"):
        libraries(root, shutil.which(program) or program)
    for mount in plan.mounts:
        bind(mount.source, root / mount.target[1:])
    devices(root, ["/dev/null", "/dev/zero"])
    for path in dev.glob("nvidia*"):
        if path.is_char_device():
            device(root / "dev" / path.name, path)
    proc(root, driver)
    mask(root, variant)
    smi = next(m.target for m in plan.mounts if m.target.endswith("/nvidia-smi"))
    before = inside(root, smi, "-L")
    scripts = [
        {"what": script.what, "round": number, **inside(root, *script.argv)}
        for number in (1, 2)
        for script in plan.scripts
    ]
    listed = inside(root, *plan.LIST)
    problem = ""
    try:
        plan.check("stand-in", listed["out"] + listed["err"])
    except Exception as error:  # noqa: BLE001  whatever it is, it is the finding
        problem = str(error)
    generate = ("nvidia-ctk", "cdi", "generate", "--device-name-strategy", "uuid")
    described = inside(root, *generate, "--format", "json")
    with contextlib.suppress(ValueError):
        described["out"] = [each["name"] for each in json.loads(described["out"])["devices"]]
    other = root / "dev" / f"nvidia{OTHER.minor}"
    found = {
        "variant": variant,
        "control": before,
        "scripts": scripts,
        "listed": listed,
        "problem": problem,
        "described": described,
        "masked": masked((root / "proc/driver/nvidia/params").read_text()),
        "other_left": other.exists(),
        "by_number": sorted(each.name for each in (root / "dev/char").glob("*")),
    }
    found["held"] = (
        before["code"] != 0
        and all(each["code"] == 0 for each in scripts)
        and not problem
        and set(plan.cards) <= set(described["out"])
        and found["masked"] is True
        and not other.exists()
    )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, help="also write the JSON here")
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    parser.add_argument("--dev", type=Path, default=Path("/dev"), help=argparse.SUPPRESS)
    parser.add_argument("--proc", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if os.geteuid() != 0:
        print("tests/gpu/node_files.py makes mounts: run it as root", file=sys.stderr)
        return 2
    if given.variant is None:
        # A mount namespace for each, so that nothing of a stand-in outlives it.
        own = ["--dev", str(given.dev), *(["--proc", str(given.proc)] if given.proc else [])]
        command = ["unshare", "--mount", "--propagation", "private", sys.executable, __file__]
        runs = [
            subprocess.run(
                [*command, *own, "--variant", v], capture_output=True, text=True, check=False
            )
            for v in VARIANTS
        ]
        results = [json.loads(r.stdout) if r.stdout else {"error": r.stderr} for r in runs]
        document = {"held": all(each.get("held") for each in results), "nodes": results}
    else:
        host = gpu_host.look()
        host = replace(host, cards=(*host.cards, OTHER))
        first = CardSpec(profile="nvidia", count=1, devices=(str(host.cards[0].index),))
        plan = gpu.plan([(first,)], host, way="files")
        with tempfile.TemporaryDirectory() as folder:
            run(["mount", "-t", "tmpfs", "tmpfs", folder])
            try:
                document = node(Path(folder), plan.nodes[0], given.variant, given.dev, given.proc)
            finally:
                subprocess.run(["umount", "-R", folder], check=False, capture_output=True)
        document["driver"] = host.driver
        document["toolkit"] = list(host.toolkit.version) if host.toolkit else None
    text = json.dumps(document, indent=1)
    if given.file:
        given.file.write_text(text + "\n")
    print(text)
    return 0 if document.get("held") else 1


if __name__ == "__main__":
    sys.exit(main())
