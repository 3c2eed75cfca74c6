"""`python -m ccbench ARGUMENTS` runs the program."""

import os
import sys

from ._plot import program

if __name__ == "__main__":
    path = program()
    os.execv(path, [path, *sys.argv[1:]])
