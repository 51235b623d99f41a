"""``python -m compcoll`` is the command ``compcoll``."""

from compcoll.cli import main

if __name__ == "__main__":
    main(prog_name="compcoll")
