"""A results directory."""

import glob
import json
import warnings
from pathlib import Path

from . import _frames
from ._renamed import RENAMED, RENAMED_VALUES
from ._units import unit_of


class RunError(Exception):
    """A results directory, or a table in it, cannot be read."""


class Run:
    """A results directory of `ccbench run`. Tables are read when they are asked for."""

    def __init__(self, path, frames=None):
        self.path = Path(path)
        library = frames or _frames.installed()
        if library is None:
            raise RunError("no library for data frames is installed; run `pip install polars`, or pandas and pyarrow")
        if library not in _frames.LIBRARIES:
            raise RunError(f"there are no frames of {library!r}; choose one of {', '.join(_frames.LIBRARIES)}")
        self.frames = library
        try:
            self.info = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(f"{self.path} is not a results directory of ccbench: run.json: {error}") from error

    def __repr__(self):
        return f"ccbench.Run({str(self.path)!r})"

    def tables(self):
        """Names of all tables: those with rows of trials, and those of the run (`trials`, `points`, summaries)."""
        of_trials = [folder.name for folder in (self.path / "tables").glob("*") if folder.is_dir()]
        return sorted(of_trials + [file.stem for file in self.path.glob("*.parquet")])

    def __getitem__(self, name):
        """A table as a frame, as `table(name)`."""
        return self._table(name, False)

    def table(self, name, counted=False):
        """A table as a frame. With `counted`, only rows of trials that summaries use: ok and degraded ones.

        Columns, kinds of events and codes of reasons have their current names, also those of runs of earlier versions. A
        DeprecationWarning names the former ones.
        """
        return self._table(name, counted)

    def _table(self, name, counted):
        files = self._files(name)
        renamed = RENAMED.get(name, {})
        for former in sorted(_frames.former_names(self.frames, files, renamed)):
            text = f"column `{former}` of {name} in {self.path} has a deprecated name; the frame has it as `{renamed[former]}`"
            # The caller of `table` or `[]`.
            warnings.warn(text, DeprecationWarning, stacklevel=3)
        values = RENAMED_VALUES.get(name, {})
        frame, former_values = _frames.read(self.frames, files, _units, renamed, values)
        for column, former in former_values:
            text = (
                f"`{former}` in column `{column}` of {name} in {self.path} is a deprecated name; "
                f"the frame has it as `{values[column][former]}`"
            )
            warnings.warn(text, DeprecationWarning, stacklevel=3)
        if not counted:
            return frame
        if not {"point_id", "trial"} <= set(_frames.column_names(self.frames, files[0])):
            raise RunError(f"{name} has no column of trials; leave out counted=True")
        trials, _ = _frames.read(self.frames, self._files("trials"), _units, RENAMED.get("trials", {}), {})
        trials = _frames.counted_trials(self.frames, trials)
        return _frames.keep_counted(self.frames, frame, trials)

    def units(self, name):
        """The unit of each column of a table that has one in its name. In summaries, the column `unit` has that of `value`."""
        renamed = RENAMED.get(name, {})
        columns = _frames.column_names(self.frames, self._files(name)[0])
        return _units([renamed.get(column, column) for column in columns])

    def _files(self, name):
        alone = self.path / f"{name}.parquet"
        if alone.is_file():
            return [str(alone)]
        files = sorted((self.path / "tables" / name).glob("**/*.parquet"))
        if not files:
            raise RunError(f"{self.path} has no table {name!r}; it has {', '.join(self.tables())}")
        return [str(file) for file in files]


def _units(columns):
    units = {column: unit_of(column) for column in columns}
    return {column: unit for column, unit in units.items() if unit}


def load(path, frames=None):
    """Opens a run: its results directory, a pattern of its path, or a directory of results directories; of several, the newest.

    `frames` is "polars", "pandas" or "pyarrow"; by default the first that is installed.
    """
    given = Path(path)
    places = [given] if given.exists() else [Path(found) for found in glob.glob(str(path))]
    runs = [place for place in places if (place / "run.json").is_file()]
    if not runs:
        runs = [file.parent for place in places for file in place.glob("*/run.json")]
    if not runs:
        raise RunError(f"{path} is neither a results directory of ccbench nor a directory of them")
    return Run(max(runs, key=lambda run: ((run / "run.json").stat().st_mtime, run.name)), frames)
