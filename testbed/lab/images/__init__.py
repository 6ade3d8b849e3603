"""The images of the process cluster, and what the host lends their containers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from testbed.errors import TestbedError
from testbed.lab import binaries, cache
from testbed.lab.cluster.protocol import Progress, Step
from testbed.lab.images import archive, ldcache, pytorch, rootfs, stack
from testbed.lab.images.front import CONFIG_FILE, CONFIG_VARIABLE, configuration
from testbed.lab.images.model import Bind, Image, find

__all__ = [
    "CONFIG_FILE",
    "CONFIG_VARIABLE",
    "FRONT",
    "PAUSE",
    "PYTORCH",
    "Bind",
    "Image",
    "configuration",
    "find",
    "folders",
    "native_at_hand",
    "native_folder",
    "prepare",
    "system_binds",
]

#: The name that containerd is told to keep for the pods' first process.
PAUSE = "registry.k8s.io/pause:3.10.2"
#: What people write in their pods. The cases' own pods name the content instead. Not `latest`:
#: kubelet would ask a registry for that each time.
PYTORCH = "testbed/pytorch:local"
#: File name of the OCI front in ``native_folder``.
FRONT = "vgpu-oci-front"

_RECIPE = "1"
#: The emulated driver's libraries, as nodes mount them below /usr/local/vgpu/driver.
_DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1")
_SCHEDULER = "/usr/local/bin/kube-scheduler"


def prepare(progress: Progress) -> tuple[Image, ...]:
    """Return the images ``pause``, ``testbed/base``, ``kube-scheduler`` and ``pytorch``.

    Last comes the PyTorch image under the name that people write, ``PYTORCH``. What is
    missing is made first; the second time it takes a fraction of a second.

    Raises:
        MissingTool, TestbedError.
    """
    programs = binaries.ensure(progress)
    stack_env = stack.prepare(progress)
    torch_env = pytorch.prepare(progress)
    native = _native(stack_env)
    driver = [_library(native, name) for name in _DRIVER]
    libraries = ldcache.prepare(progress, driver, torch_env, (pytorch.STANDINS,))
    lent = [*rootfs.lent(), Bind(source=libraries, destination="/etc/ld.so.cache")]
    scheduler = programs.path("kube-scheduler").resolve()
    root = archive.layer(rootfs.entries())
    torch_settings = archive.Settings(env=rootfs.env("pytorch"))
    torch_binds = [*lent, Bind(source=torch_env, destination=f"{rootfs.ENVIRONMENTS}/pytorch")]
    torch_name, _, torch_tag = PYTORCH.rpartition(":")
    return (
        _image(
            progress,
            "registry.k8s.io/pause",
            archive.layer([_file("pause", native / "vgpu-pause")]),
            archive.Settings(entrypoint=["/pause"]),
            tag=PAUSE.rpartition(":")[2],
        ),
        _image(
            progress,
            "testbed/base",
            root,
            archive.Settings(env=rootfs.env("stack")),
            [*lent, Bind(source=stack_env, destination=f"{rootfs.ENVIRONMENTS}/stack")],
        ),
        _image(
            progress,
            "testbed/kube-scheduler",
            root,
            archive.Settings(env=rootfs.env(), entrypoint=[_SCHEDULER]),
            [Bind(source=scheduler, destination=_SCHEDULER)],
        ),
        _image(progress, torch_name, root, torch_settings, torch_binds),
        _image(progress, torch_name, root, torch_settings, torch_binds, tag=torch_tag),
    )


def native_folder(progress: Progress) -> Path:
    """Return the folder with the OCI front, the driver and the libraries that nodes get."""
    return _native(stack.prepare(progress))


def native_at_hand() -> Path | None:
    """Return ``native_folder`` if it has been made; nothing is made."""
    found = stack.find()
    return _native(found) if found else None


def system_binds() -> tuple[Bind, ...]:
    """Return what images are lent of the machine's system; all else lies in the cache."""
    return tuple(rootfs.lent())


def folders(images: Iterable[Image]) -> tuple[Path, ...]:
    """Return the folders that hold archives and binds outside the host's system folders.

    They lie in the cache, below a home folder that containers' users cannot enter; a
    provider mounts them elsewhere and tells ``configuration`` where (``relocate``).
    """
    home = cache.root()
    found = [image.archive.parent for image in images]
    for image in images:
        for bind in image.binds:
            if bind.source.is_relative_to(home):
                found.append(bind.source if bind.source.is_dir() else bind.source.parent)
    return tuple(dict.fromkeys(found))


def _image(
    progress: Progress,
    name: str,
    content: bytes,
    settings: archive.Settings,
    binds: Sequence[Bind] = (),
    tag: str = "",
) -> Image:
    home = cache.root()
    # Entries of the cache are named by their content, so their names stand for it.
    lent = [
        f"{bind.source.relative_to(home) if bind.source.is_relative_to(home) else bind.source}"
        f" {bind.destination}"
        for bind in binds
    ]
    tags = [f"tag {tag}"] if tag else []
    key = cache.key_of(_RECIPE, name, content, repr(settings.document()), *lent, *tags)
    reference = f"{name}:{tag or key}"

    def make(folder: Path, step: Step) -> None:
        del step
        archive.write(folder / "image.tar", reference, content, settings)

    entry = cache.obtain("images", key, make, progress, f"write image {reference}")
    return Image(reference=reference, archive=entry / "image.tar", binds=tuple(binds))


def _file(name: str, path: Path) -> archive.Entry:
    return archive.Entry(name=name, mode=0o755, data=path.read_bytes())


def _native(stack_env: Path) -> Path:
    found = list(stack_env.glob("lib/python3.*/site-packages/testbed/native/lib"))
    if len(found) != 1:
        raise TestbedError("the project's wheel holds no native libraries", artifacts=stack_env)
    return found[0]


def _library(native: Path, name: str) -> Path:
    found = sorted(native.rglob(name))
    if len(found) != 1:
        raise TestbedError(f"cannot find {name}", why=f"there are {len(found)} in {native}")
    return found[0]
