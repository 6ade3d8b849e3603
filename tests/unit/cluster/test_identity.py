from pathlib import Path
from types import SimpleNamespace

import pytest

from testbed.errors import ClusterError
from testbed.lab.cluster.process import identity


def subordinate(monkeypatch, **files):
    read = Path.read_text

    def fake(self, *args, **kwargs):
        if self.name in ("subuid", "subgid"):
            if self.name not in files:
                raise FileNotFoundError(self.name)
            return files[self.name]
        return read(self, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", fake)


def ordinary(monkeypatch, name="somebody"):
    monkeypatch.setattr(identity.os, "geteuid", lambda: 1234)
    monkeypatch.setattr(identity.os, "getegid", lambda: 4321)

    def getpwuid(uid):
        if name is None:
            raise KeyError(uid)
        return SimpleNamespace(pw_name=name)

    monkeypatch.setattr(identity.pwd, "getpwuid", getpwuid)
    monkeypatch.setattr(identity.shutil, "which", lambda tool: f"/usr/bin/{tool}")


def root(monkeypatch):
    monkeypatch.setattr(identity.os, "geteuid", lambda: 0)
    monkeypatch.setattr(identity.os, "getegid", lambda: 0)
    monkeypatch.setattr(identity, "_all_ids_mapped", lambda: True)


def test_root_gets_a_high_range_and_never_itself(monkeypatch):
    root(monkeypatch)
    subordinate(monkeypatch)
    found = identity.choose("vgpu")
    assert found.privileged and found.id_range
    for group in (False, True):
        ((inside, outside, count),) = found.map_lines(group=group)
        assert inside == 0 and count == 65536
        assert outside > 1_000_000_000 and outside + count < 2**31
    assert identity.choose("vgpu") == found
    assert identity.choose("other").uid != found.uid


def test_root_avoids_ranges_that_others_were_given(monkeypatch):
    root(monkeypatch)
    subordinate(monkeypatch)
    base = identity.choose("vgpu").uid
    subordinate(monkeypatch, subuid=f"x:{base + 10}:5\n", subgid=f"y:{base + 65536}:1\n")
    assert identity.choose("vgpu").uid == base + 2 * 65536


def test_no_free_range(monkeypatch):
    root(monkeypatch)
    subordinate(monkeypatch, subuid=f"x:0:{2**31}\n")
    with pytest.raises(ClusterError):
        identity.choose("vgpu")


def test_an_ordinary_user_has_one_id(monkeypatch):
    ordinary(monkeypatch)
    subordinate(monkeypatch)
    found = identity.choose("vgpu")
    assert not found.id_range and not found.privileged
    assert found.map_lines(group=False) == [(0, 1234, 1)]
    assert found.map_lines(group=True) == [(0, 4321, 1)]


@pytest.mark.parametrize("owner", ["somebody", "1234"])
def test_an_ordinary_user_with_a_subordinate_range(monkeypatch, owner):
    ordinary(monkeypatch)
    subordinate(
        monkeypatch,
        subuid=f"# comment\nother:1:99999\n{owner}:100000:70000\n",
        subgid=f"{owner}:200000:65536\n",
    )
    found = identity.choose("vgpu")
    assert found.id_range and not found.privileged
    assert found.map_lines(group=False) == [(0, 1234, 1), (1, 100000, 65535)]
    assert found.map_lines(group=True) == [(0, 4321, 1), (1, 200000, 65535)]


def test_a_user_without_an_entry_cannot_use_a_range(monkeypatch):
    ordinary(monkeypatch, name=None)
    subordinate(monkeypatch, subuid="1234:100000:65536\n", subgid="1234:100000:65536\n")
    assert not identity.choose("vgpu").id_range


def test_root_of_a_container_with_few_ids_counts_as_ordinary(monkeypatch):
    root(monkeypatch)
    monkeypatch.setattr(identity, "_all_ids_mapped", lambda: False)
    subordinate(monkeypatch)
    assert identity.choose("vgpu").map_lines(group=False) == [(0, 0, 1)]


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        (
            {"kernel.apparmor_restrict_unprivileged_userns": "1"},
            "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        (
            {"kernel.unprivileged_userns_clone": "0"},
            "sudo sysctl -w kernel.unprivileged_userns_clone=1",
        ),
        ({"user.max_user_namespaces": "0"}, "sudo sysctl -w user.max_user_namespaces=15000"),
        ({}, "--security-opt"),
    ],
)
def test_the_command_that_lets_namespaces_be_made(settings, hint):
    assert hint in identity._namespace_hint(settings.get)
