"""Runs benchmarks by name, or all of them, and prints what they found.

Machines differ and are noisy, so every figure stands beside a plain loop that was timed in the same run: compare
ratios, not times.
"""

import argparse
import importlib

NAMES = ("core", "memory")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(NAMES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="a tenth of the size")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in NAMES]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}: choose from {', '.join(NAMES)}")
    for name in arguments.names or NAMES:
        importlib.import_module(f"benchmarks.{name}").run(quick=arguments.quick)


main()
