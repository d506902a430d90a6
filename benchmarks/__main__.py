"""Runs benchmarks by name, or all of them, and prints what they found.

Machines differ and are noisy, so every figure stands beside a plain loop that was timed in the same run: compare
ratios, not times.
"""

import argparse

from benchmarks import core, durable, failures, flow, intake, memory, metrics, runtime

NAMES = ("core", "memory", "runtime", "failures", "flow", "intake", "metrics", "durable")
PARTS = (*runtime.PARTS, *durable.PARTS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(NAMES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="a tenth of the size")
    parser.add_argument("--only", default="", help=f"parts of runtime or durable, by commas: {', '.join(PARTS)}")
    arguments = parser.parse_args()
    names = arguments.names or NAMES
    parts = [part for part in arguments.only.split(",") if part]
    for given, known in ((names, NAMES), (parts, PARTS)):
        for each in given:
            if each not in known:
                parser.error(f"there is no {each!r}: choose from {', '.join(known)}")
    if "core" in names:
        core.run(quick=arguments.quick)
    if "memory" in names:
        memory.run(quick=arguments.quick)
    if "runtime" in names:
        runtime.run(quick=arguments.quick, only=parts)
    if "failures" in names:
        failures.run(quick=arguments.quick)
    if "flow" in names:
        flow.run(quick=arguments.quick)
    if "intake" in names:
        intake.run(quick=arguments.quick)
    if "metrics" in names:
        metrics.run(quick=arguments.quick)
    if "durable" in names:
        durable.run(quick=arguments.quick, only=parts)


main()
