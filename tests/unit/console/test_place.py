"""Where the control socket of a store is."""

import os
import stat

import pytest

from naviscope_ingest.console.place import MAX_NAME, control_path


def test_it_stands_beside_the_file(monkeypatch):
    monkeypatch.chdir("/tmp")
    assert str(control_path("x.db")) == "/tmp/x.db.control"


def test_a_link_leads_to_the_same_socket(tmp_path):
    (tmp_path / "link.db").symlink_to(tmp_path / "x.db")
    assert control_path(tmp_path / "link.db") == control_path(tmp_path / "x.db")


@pytest.fixture
def deep(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / ("d" * 120) / "x.db"


def test_a_long_name_goes_to_a_folder_of_ones_own(deep):
    path = control_path(deep)
    assert len(os.fsencode(path)) <= MAX_NAME + len(str(deep.parent.parent))
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert control_path(deep) == path != control_path(deep.with_name("y.db"))


def test_a_folder_that_others_may_write_to_is_refused(deep):
    control_path(deep).parent.chmod(0o777)
    with pytest.raises(PermissionError, match="belongs to you alone"):
        control_path(deep)


def test_a_link_in_place_of_the_folder_is_refused(deep, tmp_path):
    folder = control_path(deep).parent
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="belongs to you alone"):
        control_path(deep)
