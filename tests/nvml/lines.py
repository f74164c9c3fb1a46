"""A helper process that is none: answers what a test has put in, so that time and silence are the test's to choose."""

from __future__ import annotations

VALUES = {"utilization_ratio": 0.5, "memory_used_bytes": 2.0, "power_watts": 3.0, "temperature_celsius": 40.0}


def device(index, name="H100", mig=()):
    """Return the facts of a GPU as the helper sends them."""
    facts = {"index": index, "name": name, "uuid": f"GPU-{index}f", "pci": "", "memory_total_bytes": 8.0}
    return {**facts, "mig": list(mig)}


def card(index, values=None, **more):
    """Return what the helper says of a GPU."""
    return {"index": index, "values": VALUES if values is None else values, "processes": [], "mig": [], **more}


def lost(index):
    """Return what the helper says of a GPU that is gone."""
    return {"index": index, "lost": "GPU is lost"}


def answer(*cards, devices=None, xids=()):
    """Return an answer about these GPUs."""
    listed = [device(each["index"]) for each in cards] if devices is None else devices
    return {"moment": 7, "devices": listed, "driver": "580", "gpus": list(cards), "xids": list(xids)}


class FakeLine:
    """One helper: answers from `answers` in turn; None in their place means silence from then on."""

    def __init__(self, *answers, dies=True):
        """Prepare the answers; `dies` says whether killing it works."""
        self.answers, self.dies = list(answers), dies
        self.ended = self.abandoned = False
        self.requests, self.waited = [], []

    def send(self, request):
        """Take a request."""
        self.requests.append(request)

    def receive(self, wait=0.0):
        """Return the next answer, if there is one."""
        self.waited.append(wait)
        if not self.answers or self.answers[0] is None:
            return []
        found = self.answers.pop(0)
        if found == "end":
            self.ended = True
            return []
        return [found]

    def abandon(self, wait=0.0):
        """Note that it was let go."""
        self.abandoned = True

    def gone(self):
        """Tell whether killing it worked."""
        return self.abandoned and self.dies

    def end(self):
        """Return how it ended."""
        return "killed by SIGSEGV"
