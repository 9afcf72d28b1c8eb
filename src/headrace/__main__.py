"""``python -m headrace``: the command ``headrace``, where its script is not on the PATH."""

from headrace.cli.main import main

if __name__ == "__main__":  # children that multiprocessing spawns may import this file under another name
    main()
