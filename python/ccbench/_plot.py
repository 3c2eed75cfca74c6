"""Figures of `ccbench plot`."""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path


class PlotError(Exception):
    """There is no program, or it draws no figure."""


def program():
    """The path of `ccbench`: that of this installation, of CCBENCH, or on the PATH."""
    given = os.environ.get("CCBENCH")
    places = [given] if given else [os.path.join(sysconfig.get_path("scripts"), "ccbench"), shutil.which("ccbench")]
    for place in places:
        if place and os.access(place, os.X_OK):
            return place
    raise PlotError("the program ccbench is not installed; install the wheel, or set CCBENCH to its path")


def plot(run, kind, *, output=None, **options):
    """Runs `ccbench plot RUN --kind KIND` and returns the files that it has written, figures and their data.

    `run` is a Run or the path of a results directory. Options are those of the command, with underscores: `metric="srtt"`,
    `where={"trial": 1}`, `format=["svg"]`, `width_mm=85`, `include_failed=True`.
    """
    path = Path(getattr(run, "path", run))
    to = Path(output) if output is not None else path / "figures"
    command = [program(), "plot", str(path), "--kind", kind, "--output", str(to), *_arguments(options)]
    folder = to.parent if to.suffix in (".svg", ".png") else to
    before = _files(folder)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PlotError(done.stderr.strip() or f"{' '.join(command)} ended with exit code {done.returncode}")
    return sorted(file for file, written in _files(folder).items() if before.get(file) != written)


def _files(folder):
    """Files with the times of their last change."""
    return {file: file.stat().st_mtime_ns for file in folder.glob("*") if file.is_file()}


def _arguments(options):
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is None:
            values = []
        elif isinstance(value, bool):
            values = [None] if value else []
        elif isinstance(value, dict):
            values = [f"{column}={level}" for column, level in value.items()]
        elif isinstance(value, (list, tuple)):
            values = value
        else:
            values = [value]
        for each in values:
            yield flag
            if each is not None:
                yield str(each)
