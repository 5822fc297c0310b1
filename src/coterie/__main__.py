"""``python -m coterie``, where the command is not on the path."""

from coterie.commands.cli import main

if __name__ == "__main__":
    main()
