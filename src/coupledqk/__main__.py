"""The program `coupledqk`, and `python -m coupledqk`."""

from .signals import end_on_signals


def main() -> None:
    with end_on_signals():
        from .cli import main as run  # signals end the program while it is still being imported, too

        run()


if __name__ == "__main__":
    main()
