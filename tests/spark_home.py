"""A home of Spark whose Python workers import PySpark from a folder instead of from an archive.

Spark puts `python/lib/pyspark.zip` before all else that its workers import from, and Python keeps
no bytecode of what is in an archive: each start of a worker compiles some hundred modules again,
which takes 0.7 s instead of 0.2 s. Every query starts one, and where the machine is busy it may
take longer than the 10 s that Spark gives it. The home made here is PySpark's own, except for
a folder in the place of the archive; what runs is the same.
"""

import importlib.util
import os
import shutil
import tempfile
import zlib
from pathlib import Path

__all__ = ["make_home"]


def make_home(folder: Path) -> Path | None:
    """Return the home, made in `folder` if it is not there yet; None without a PySpark of pip's."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    archives = package / "python" / "lib"
    if not (archives / "pyspark.zip").is_file():
        return None
    home = folder / f"spark-{zlib.crc32(str(package).encode()):08x}"
    if not home.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder))
        for entry in ("bin", "jars", "sbin"):
            (made / entry).symlink_to(package / entry)
        imported = made / "python" / "lib" / "pyspark.zip"
        imported.mkdir(parents=True)
        (imported / "pyspark").symlink_to(package)
        for archive in archives.glob("py4j-*.zip"):
            (imported.parent / archive.name).symlink_to(archive)
        try:
            os.rename(made, home)
        except OSError:  # another run has just made it
            shutil.rmtree(made)
    return home
