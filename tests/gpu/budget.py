"""The time that a call of scripts/gpu_test may take, and what its steps need of it."""
import dataclasses
import math
import time

from context import GRACE

# Seconds at the end of a budget in which no step runs: they are for ending a step that hangs, for writing the results
# and for removing the temporary folder.
RESERVE = GRACE + 10
REHEARSAL_FACTOR = 5  # a busy machine without a GPU is several times slower than an idle one


@dataclasses.dataclass(frozen=True)
class Step:
    run: object    # function of a Context that returns figures
    on_card: int   # expected seconds on an H200; an elastic step states what is worth a start
    on_cpu: int    # the same for a rehearsal on two cores
    limit: int     # seconds after which the step is ended; longer in a rehearsal
    elastic: bool = False  # it takes as long as it is given

    @property
    def name(self):
        return self.run.__name__

    def expected(self, device):
        return self.on_cpu if device == "cpu" else self.on_card

    def longest(self, device):
        return REHEARSAL_FACTOR * self.limit if device == "cpu" else self.limit


class Budget:
    """Counts down from its construction. seconds = None means no limit."""

    def __init__(self, seconds, clock=time.monotonic):
        self.clock = clock
        self.end = math.inf if seconds is None else clock() + seconds - RESERVE

    def fits(self, step, device):
        return self.clock() + step.expected(device) <= self.end

    def deadline(self, step, device, later=()):
        """Returns when a step that starts now must have ended, on the clock of this budget. An elastic step leaves the
        later ones their expected time."""
        end = self.end
        if step.elastic:
            end = max(end - sum(other.expected(device) for other in later), self.clock() + step.expected(device))
        return min(self.clock() + step.longest(device), end)


def refusal(seconds, steps, device):
    """Returns why a budget is too short for every step, or ""."""
    shortest = min(steps, key=lambda step: step.expected(device))
    needed = shortest.expected(device) + RESERVE
    if seconds is None or seconds >= needed:
        return ""
    return (f"--budget {seconds} is too short for every chosen step; the shortest, {shortest.name}, needs {needed} "
            f"seconds, {RESERVE} of them to end a step that hangs and to write the results")
