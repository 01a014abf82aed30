"""What is shipped: a wheel built from the committed files holds the whole package, and nothing else."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
LINKS = ("models", "hardware", "planner", "cli.py")
DATA_SUFFIXES = {".py", ".yaml", ".typed", ".j2"}


def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    # The checkout may belong to somebody else than who runs the tests, as in containers.
    command = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, check=False)


def run(*command: str, folder: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def has_setuptools() -> bool:
    try:
        import setuptools
    except ImportError:
        return False
    return int(setuptools.__version__.split(".")[0]) >= 77


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The committed files alone: what lies about in the working tree must not slip into a wheel."""
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    if git("rev-parse", "--verify", "HEAD").returncode:
        pytest.skip("not a git checkout")
    made = git("archive", "--format=tar", "HEAD")
    assert made.returncode == 0, made.stderr.decode()
    folder = tmp_path_factory.mktemp("archive")
    (folder / "archive.tar").write_bytes(made.stdout)
    with tarfile.open(folder / "archive.tar") as archive:
        archive.extractall(folder / "checkout", filter="tar")
    return folder / "checkout"


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pytest.importorskip("build")
    options = ["--no-isolation", "--skip-dependency-check"] if has_setuptools() else []
    run(sys.executable, "-m", "build", "--wheel", *options, "--outdir", str(folder), str(checkout), folder=folder)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def shipped(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def package_files(checkout: Path) -> set[str]:
    """Every file of the package in the tree, as named in a wheel."""
    found = set()
    for folder in (checkout / "src" / "shardwright", *(checkout / name for name in LINKS)):
        below = (
            [folder] if folder.is_file() else [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
        )
        start = checkout / "src" if folder.name == "shardwright" else checkout
        prefix = PurePosixPath() if folder.name == "shardwright" else PurePosixPath("shardwright")
        found |= {str(prefix / path.relative_to(start).as_posix()) for path in below}
    return found


def test_links_are_committed_as_links():
    if git("rev-parse", "--verify", "HEAD").returncode:
        pytest.skip("not a git checkout")
    modes = git("ls-tree", "HEAD", *(f"src/shardwright/{name}" for name in LINKS)).stdout.decode().splitlines()
    assert [line.split()[0] for line in modes] == ["120000"] * len(LINKS)


def test_the_wheel_holds_every_file_of_the_package(checkout: Path, shipped: set[str]):
    inside = {name for name in shipped if ".dist-info/" not in name}
    wanted = {name for name in package_files(checkout) if PurePosixPath(name).suffix in DATA_SUFFIXES}
    assert wanted - inside == set(), "in the tree, not in the wheel"
    assert inside - package_files(checkout) == set(), "in the wheel, not in the tree"


def test_the_wheel_holds_the_data_files(shipped: set[str]):
    assert "shardwright/py.typed" in shipped
    for place in ("models/presets", "hardware/presets", "planner/stacks"):
        assert [name for name in shipped if name.startswith(f"shardwright/{place}/") and name.endswith(".yaml")], place


def test_the_wheel_puts_one_name_into_site_packages(shipped: set[str]):
    assert {PurePosixPath(name).parts[0] for name in shipped if ".dist-info/" not in name} == {"shardwright"}


def test_no_file_of_the_package_is_of_an_unknown_kind(checkout: Path):
    """A new kind of data file wants its pattern in `package-data`; without it the wheel would lack the file in silence."""
    other = {name for name in package_files(checkout) if PurePosixPath(name).suffix not in DATA_SUFFIXES}
    templates = {name for name in other if "/templates/" in name}
    documentation = {name for name in other if name.endswith(".md")}
    assert other - templates - documentation == set()


def test_the_metadata_is_complete(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        folder = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA")).rsplit("/", 1)[0]
        metadata = archive.read(f"{folder}/METADATA").decode()
        entry_points = archive.read(f"{folder}/entry_points.txt").decode()
        assert f"{folder}/licenses/LICENSE" in archive.namelist()
    assert "Name: shardwright\n" in metadata
    assert "License-Expression: Apache-2.0\n" in metadata
    assert 'Requires-Dist: torch==2.13.0; extra == "frameworks"' in metadata
    assert "shardwright = shardwright.__main__:main" in entry_points


def test_the_wheel_is_used_from_another_folder(wheel: Path, tmp_path: Path):
    """The package as shipped, found without the checkout: its modules and its data."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import shardwright, shardwright.documents as d, importlib.resources as r\n"
        "assert d.__file__.startswith(sys.argv[1]), d.__file__\n"
        "for p in ('models', 'hardware', 'planner'):\n"
        "    files = r.files('shardwright.' + p)\n"
        "    assert str(files).startswith(sys.argv[1]), files\n"
        "    assert [f for f in files.iterdir() if f.name in ('presets', 'stacks')], p\n"
        "import importlib.util as u\n"
        "assert not [m for m in ('models', 'hardware', 'planner', 'cli') if u.find_spec(m)]\n"
    )
    run(sys.executable, "-c", script, str(tmp_path / "site"), folder=tmp_path)
