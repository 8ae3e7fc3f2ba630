"""python -m seqloom, and the command `seqloom`"""

import sys


def main() -> None:
    """Imports the command line, which takes a moment in which a user may change their mind, and runs it."""
    try:
        from seqloom.cli import main as run_command
    except KeyboardInterrupt:
        sys.exit(130)
    except MemoryError:
        sys.exit("seqloom: memory is short; close other programs, or raise the limit")
    run_command()


if __name__ == "__main__":
    main()
