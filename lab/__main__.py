"""``python -m lab`` is ``lab``."""

from lab.cli import main

if __name__ == "__main__":
    main()
