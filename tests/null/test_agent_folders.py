"""What an agent's calls may read and write: files in the allowed folders, and no way around that."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tilewright.agent import folders as module
from tilewright.agent.folders import Folders
from tilewright.errors import BadInput

OUTSIDE = "not for agents"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An allowed folder with every kind of way out, beside a secret."""
    (tmp_path / "secret.txt").write_text(OUTSIDE)
    (tmp_path / "allowed-too").mkdir()
    (tmp_path / "allowed-too" / "secret.txt").write_text(OUTSIDE)
    allowed = tmp_path / "allowed"
    (allowed / "sub").mkdir(parents=True)
    (allowed / "sub" / "a.txt").write_text("a")
    (allowed / "link.txt").symlink_to("../secret.txt")
    (allowed / "up").symlink_to("..")
    (allowed / "chain").symlink_to("link.txt")
    (allowed / "loop").symlink_to("loop")
    (allowed / "zero").symlink_to("/dev/zero")
    (allowed / "inner.txt").symlink_to("sub/a.txt")
    os.mkfifo(allowed / "pipe")
    return allowed


@pytest.fixture(params=[True, False], ids=["below a folder", "by path"])
def opening(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Systems that can open below a folder, and those that cannot."""
    if not request.param:
        monkeypatch.setattr(os, "supports_dir_fd", set())


@pytest.mark.usefixtures("opening")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("../secret.txt", "outside"),
        ("sub/../../secret.txt", "outside"),
        ("./././../secret.txt", "outside"),
        ("link.txt", "outside"),
        ("chain", "outside"),
        ("up/secret.txt", "outside"),
        ("up/allowed-too/secret.txt", "outside"),
        ("../allowed-too/secret.txt", "outside"),
        ("/etc/passwd", "outside"),
        ("/proc/self/environ", "outside"),
        ("zero", "outside"),
        ("~/.bashrc", "cannot be opened"),
        ("loop", "cannot be"),
        ("pipe", "not a regular file"),
        ("sub", "not a regular file"),
        ("", "not a regular file"),
        (".", "not a regular file"),
        ("none.txt", "No such file"),
        ("sub/a.txt/b", "cannot be"),
        ("a\0b", "zero byte"),
        ("x" * 5000, "cannot be"),
        ("a/" * 3000, "cannot be"),
    ],
)
def test_what_is_refused(place: Path, name: str, says: str) -> None:
    with pytest.raises(BadInput, match=says) as refused:
        Folders.of((place,)).read_text(name)
    assert OUTSIDE not in str(refused.value)


@pytest.mark.usefixtures("opening")
def test_what_is_read(place: Path) -> None:
    folders = Folders.of((place,))
    assert folders.read_text("sub/a.txt") == "a"
    assert folders.read_text("inner.txt") == "a"
    assert folders.read_text("sub/../sub/a.txt") == "a"
    assert folders.read_text(str(place / "sub" / "a.txt")) == "a"


def test_an_allowed_folder_may_itself_be_a_link(place: Path) -> None:
    door = place.parent / "door"
    door.symlink_to(place)
    folders = Folders.of((door,))
    assert folders.read_text("sub/a.txt") == "a"
    assert folders.read_text(str(door / "sub" / "a.txt")) == "a"
    with pytest.raises(BadInput, match="outside"):
        folders.read_text("link.txt")


def test_no_folder_allows_nothing() -> None:
    with pytest.raises(BadInput, match="--allow DIR"):
        Folders().read_text("a.txt")
    with pytest.raises(BadInput, match="not a folder"):
        Folders.of((Path("no-such-folder"),))


@pytest.mark.parametrize("name", ["link.txt", "up/secret.txt"])
def test_a_link_put_there_after_the_check_is_not_followed(
    place: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the file had been swapped between the look-up and the opening."""
    folders = Folders.of((place,))
    monkeypatch.setattr(Folders, "_inside", lambda _self, given: place / given)
    with pytest.raises(BadInput, match="cannot be opened"):
        folders.read_text(name)
    with pytest.raises(BadInput, match="cannot be opened"):
        folders.write(name, b"overwritten")
    assert (place.parent / "secret.txt").read_text() == OUTSIDE


def test_sizes_and_encodings(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = Folders.of((place,))
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 100)
    (place / "exact").write_bytes(b"x" * 100)
    (place / "large").write_bytes(b"x" * 101)
    assert folders.read_text("exact") == "x" * 100
    with pytest.raises(BadInput, match="more than 100 bytes"):
        folders.read_text("large")
    (place / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match="not UTF-8"):
        folders.read_text("binary")


@pytest.mark.usefixtures("opening")
def test_writing(place: Path) -> None:
    folders = Folders.of((place,))
    assert folders.write("sub/out.bin", b"new") == "sub/out.bin"
    assert (place / "sub" / "out.bin").read_bytes() == b"new"
    for name in ("../out.bin", "link.txt", "up/out.bin", "/etc/out.bin", "none/out.bin", "sub"):
        with pytest.raises(BadInput):
            folders.write(name, b"bad")
    assert (place.parent / "secret.txt").read_text() == OUTSIDE
    assert not (place.parent / "out.bin").exists()
    assert (
        len(list(Path("/proc/self/fd").iterdir())) < 100
    )  # descriptors are closed, refused or not
