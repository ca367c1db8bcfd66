"""Key files: who may read them, and what is said of those that are none."""

import os
import stat

import pytest

from p2pmsg.errors import ConfigError
from p2pmsg.security import new_keys, read_key_file, write_key_file
from transports.curve import CurveKeys, key_text


def test_a_key_file_is_for_its_owner_only(tmp_path):
    path = tmp_path / "id"
    keys = new_keys()
    before = os.umask(0)
    try:
        write_key_file(path, keys)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_key_file(path) == keys
    assert key_text(keys.public) not in path.read_text()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o644, 0o666, 0o777])
def test_one_that_others_can_read_is_refused(tmp_path, mode):
    path = tmp_path / "id"
    write_key_file(path, new_keys())
    path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"chmod 600.*{path}, mode {mode:04o}") as caught:
        read_key_file(path)
    assert caught.value.field == "key"


def test_a_key_is_never_overwritten_nor_is_a_link_followed(tmp_path):
    path, link = tmp_path / "id", tmp_path / "link"
    keys = new_keys()
    write_key_file(path, keys)
    link.symlink_to(tmp_path / "elsewhere")
    for place in (path, link):
        with pytest.raises(ConfigError, match="a path where nothing is yet"):
            write_key_file(place, new_keys())
    assert read_key_file(path) == keys
    assert not (tmp_path / "elsewhere").exists()


SECRET = key_text(CurveKeys.of_secret(bytes(range(32))).secret)


@pytest.mark.parametrize(
    "text",
    [
        "", "secret-key", f"{SECRET}", f"secret-key {SECRET[:-1]}", f"secret-key {SECRET} more",
        f"secret-key {SECRET}\nsecret-key {SECRET}", f"public-key {SECRET}", "# only a comment",
        f"secret-key {SECRET}=", "\0" * 43, f"secret-key {SECRET} ".rjust(5000),
    ],
    ids=list("abcdefghijk"),  # not by the key, which differs from process to process
)  # fmt: skip
def test_what_is_no_key_file_is_refused_and_never_shown(tmp_path, text):
    path = tmp_path / "id"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError) as caught:
        read_key_file(path)
    error = caught.value
    while error is not None:
        assert SECRET[:20] not in f"{error} {error!r} {error.args}"
        error = error.__cause__
    assert str(path) in str(caught.value)


def test_a_pipe_and_a_folder_are_no_key_files(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ConfigError, match="key must be a file, not"):
            read_key_file(path)
    with pytest.raises(FileNotFoundError):
        read_key_file(tmp_path / "missing")


def test_the_public_text_of_a_new_key_is_no_option():
    assert not any(key_text(new_keys().public).startswith("-") for _ in range(300))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to another user")
def test_one_that_another_user_owns_is_refused(tmp_path):
    path = tmp_path / "id"
    write_key_file(path, new_keys())
    os.chown(path, 12345, -1)
    with pytest.raises(ConfigError, match=rf"\(chown\).*{path}, owner 12345"):
        read_key_file(path)
    os.chown(path, 0, -1)
    assert read_key_file(path)
