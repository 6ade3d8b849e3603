"""The page of a card: made once, kept while valid, never trusted."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from testbed.errors import CodecError, InputError
from testbed.native import page

INCLUDE = Path(page.__file__).parent / "include"
UUID = "GPU-00000000-0000-4000-8000-000000000001"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    path = tmp_path / "pages" / f"{UUID}.page"
    page.make_page(path, UUID)
    return path


def claim(path: Path, index: int, identity: int, **fields: int) -> None:
    with path.open("r+b") as file:
        content = page.Page.from_buffer_copy(file.read())
        content.tenants[index] = page.Tenant(id=identity, **fields)
        content.tenant_count = max(content.tenant_count, index + 1)
        file.seek(0)
        file.write(bytes(content))


def test_made_empty_and_for_everybody(made: Path) -> None:
    assert page.read_page(made) == page.PageView(uuid=UUID, tenants=())
    assert made.stat().st_mode & 0o777 == 0o666
    assert [entry.name for entry in made.parent.iterdir()] == [made.name]


def test_a_valid_page_is_kept(made: Path) -> None:
    claim(made, 3, 7, active_ns=5, priority=1, limit_pct=30)
    inode = made.stat().st_ino
    page.make_page(made, UUID)
    assert made.stat().st_ino == inode
    (tenant,) = page.read_page(made).tenants
    assert (tenant.id, tenant.active_ns, tenant.priority, tenant.limit_pct) == (7, 5, 1, 30)


@pytest.mark.parametrize("how", ["cut", "magic", "version", "count", "pipe", "link", "other"])
def test_a_spoiled_page(made: Path, how: str) -> None:
    claim(made, 0, 7)
    if how == "cut":
        os.truncate(made, 4096)
    elif how in ("pipe", "link"):
        made.unlink()
        _ = os.mkfifo(made) if how == "pipe" else made.symlink_to("/etc/passwd")
    elif how == "other":
        made.unlink()
        page.make_page(made, UUID[:-1] + "2")
    else:
        offset = {"magic": 0, "version": 8, "count": page.Page.tenant_count.offset}[how]
        with made.open("r+b") as file:
            file.seek(offset)
            file.write(b"\xff\xff\xff\xff")
    if how == "count":
        assert [tenant.id for tenant in page.read_page(made).tenants] == [7]
        return
    if how != "other":
        with pytest.raises(CodecError):
            page.read_page(made)
    page.make_page(made, UUID)
    assert page.read_page(made) == page.PageView(uuid=UUID, tenants=())


def test_what_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        page.make_page(tmp_path / "a.page", "x" * 96)
    (tmp_path / "file").touch()
    with pytest.raises(InputError):
        page.make_page(tmp_path / "file" / "a.page", UUID)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")
def test_every_field_lies_where_c_puts_it(tmp_path: Path) -> None:
    rows, expected = [], {}
    for name, structure in (("vgpu_page", page.Page), ("vgpu_page_tenant", page.Tenant)):
        expected[name] = ctypes.sizeof(structure)
        rows.append(f'printf("\\"{name}\\": %zu,", sizeof(struct {name}));')
        for field in structure._fields_:
            expected[f"{name}.{field[0]}"] = getattr(structure, field[0]).offset
            rows.append(
                f'printf("\\"{name}.{field[0]}\\": %zu,", offsetof(struct {name}, {field[0]}));'
            )
    for name, value in (
        ("VGPU_PAGE_MAGIC", page.MAGIC),
        ("VGPU_PAGE_VERSION", page.VERSION),
        ("VGPU_PAGE_TENANTS", page.TENANTS),
        ("VGPU_PAGE_STALE_NS", page.STALE_NS),
    ):
        expected[name] = value
        rows.append(f'printf("\\"{name}\\": %llu,", (unsigned long long){name});')
    source = tmp_path / "offsets.c"
    source.write_text(
        '#include <stdio.h>\n#include "page.h"\nint main(void) { printf("{");\n'
        + "\n".join(rows)
        + 'printf("\\"end\\": 0}"); return 0; }\n'
    )
    program = tmp_path / "offsets"
    subprocess.run(["gcc", f"-I{INCLUDE}", source, "-o", program], check=True, timeout=240)
    found = json.loads(subprocess.run([program], check=True, capture_output=True).stdout)
    del found["end"]
    assert found == expected
