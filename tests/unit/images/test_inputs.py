"""Hashes of image inputs: what must change a tag, and what must not."""

from pathlib import Path

import pytest

from tools.images.inputs import content_hash, iter_files


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a small working tree: a file, a package, byte code."""
    (tmp_path / "lock").write_text("a")
    package = tmp_path / "src" / "package"
    package.mkdir(parents=True)
    (package / "module.py").write_text("x = 1\n")
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "module.cpython-311.pyc").write_bytes(b"old")
    return tmp_path


ENTRIES = ("lock", "src")


def test_the_same_tree_has_the_same_hash_whatever_the_order_of_entries(tree: Path) -> None:
    assert content_hash(tree, ENTRIES) == content_hash(tree, tuple(reversed(ENTRIES)))


def test_a_changed_byte_changes_the_hash(tree: Path) -> None:
    before = content_hash(tree, ENTRIES)
    (tree / "src" / "package" / "module.py").write_text("x = 2\n")
    assert content_hash(tree, ENTRIES) != before


def test_a_renamed_file_changes_the_hash(tree: Path) -> None:
    before = content_hash(tree, ENTRIES)
    (tree / "src" / "package" / "module.py").rename(tree / "src" / "package" / "other.py")
    assert content_hash(tree, ENTRIES) != before


def test_a_new_file_of_a_listed_but_missing_entry_changes_the_hash(tree: Path) -> None:
    entries = (*ENTRIES, "later")
    before = content_hash(tree, entries)
    (tree / "later").write_text("")
    assert content_hash(tree, entries) != before


def test_text_moved_between_two_files_changes_the_hash(tmp_path: Path) -> None:
    for name, one, two in (("first", "ab", "c"), ("second", "a", "bc")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1").write_text(one)
        (tmp_path / name / "2").write_text(two)
    entries = ("1", "2")
    assert content_hash(tmp_path / "first", entries) != content_hash(tmp_path / "second", entries)


def test_byte_code_and_files_not_listed_do_not_count(tree: Path) -> None:
    before = content_hash(tree, ENTRIES)
    (tree / "src" / "package" / "__pycache__" / "module.cpython-311.pyc").write_bytes(b"new")
    (tree / "src" / "package.egg-info").mkdir()
    (tree / "src" / "package.egg-info" / "PKG-INFO").write_text("")
    (tree / "README.md").write_text("new")
    assert content_hash(tree, ENTRIES) == before


def test_facts_count_and_so_does_their_order(tree: Path) -> None:
    hashes = {content_hash(tree, ENTRIES, facts) for facts in ((), ("a",), ("a", "b"), ("b", "a"), ("ab",))}
    assert len(hashes) == 5


def test_a_file_listed_twice_is_counted_once(tree: Path) -> None:
    files = [path.name for path in iter_files(tree, ("src", "src/package/module.py"))]
    assert files == ["module.py"]
