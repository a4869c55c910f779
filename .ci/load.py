#!/usr/bin/env python3
"""Many sessions at once, to the end: python3 .ci/load.py [SECONDS] [SEED]

First 64 sessions on one connection to one agent process, half of the time on version 1 and half on version 2; then 32
agent processes with 2 sessions each, every other one on version 2. SECONDS for each of the two. Each session prompts
again and again in a thread of its own, with permissions, forms, files, cancels, timeouts and turns that are left, by
chance. What must hold: each turn ends as it should, with every word of its own session and turn and none of another;
the agent sees the answers that the client gave; whenever all rest, both sides have the threads and file descriptors
that they had before, and the memory does not grow; at the end nothing is left. Exit status 1 when something did not.
Needs Linux: it reads /proc.
"""
import faulthandler
import gc
import logging
import os
import random
import shutil
import sys
import tempfile
import time

import talk
from talk import SOON, until

GROWTH = 40 << 20  # bytes that a process may grow between its first rest and its last; sessions keep what was said
REST = 15  # seconds between rests
IDLE = 6  # seconds until an idle worker has ended (acp._Workers: 5), and a little


class Agent:
    """One agent process, the client of it, and its sessions."""

    def __init__(self, number, version, sessions, seed, folder, tally):
        self.number, self.version, self.stderr = number, version, []
        self.client = talk.acp.Client(
            talk.TALKER, version=version, files=talk.acp.LocalFiles(folder), on_stderr=self.stderr.append,
            start_timeout=3 * SOON, **talk.Talk.callbacks())
        self.pid = self.client._process.popen.pid
        self.talks = [talk.Talk(self.client, random.Random(f"{seed} {version} {number} {each}"), folder, tally)
                      for each in range(sessions)]


class Part:
    """Some agents with some sessions each, for some seconds; collects what was wrong."""

    def __init__(self, versions, sessions, seconds, seed):
        self.wrong, self.tally, self.seed, self.agents, self.measured = [], talk.Tally(), seed, [], []
        self.before = talk.descriptors(), talk.threads()
        self.folder = tempfile.mkdtemp(prefix="acp-load-")
        with open(os.path.join(self.folder, "read.txt"), "w", encoding="ascii") as file:
            file.write("x" * 1000)
        try:
            for number, version in enumerate(versions):
                self.agents.append(Agent(number, version, sessions, seed, self.folder, self.tally))
            for agent in self.agents:
                for each in agent.talks:
                    each.start()
            end = time.monotonic() + seconds
            self.work(min(seconds / 3, REST))  # until all is warm
            self.rest(warm=False)
            while (left := end - time.monotonic()) > 0:
                self.work(min(left, REST))
                self.rest()
            self.judge()
        finally:
            for agent in self.agents:
                for each in agent.talks:
                    each.stopping.set()
                    each.go.set()
            for agent in self.agents:
                agent.client.close()
            shutil.rmtree(self.folder, ignore_errors=True)
        self.gone()

    def talks(self):
        return [each for agent in self.agents for each in agent.talks]

    def work(self, seconds):
        for each in self.talks():
            each.go.set()
        time.sleep(seconds)

    def rest(self, warm=True):
        """Let all come to rest, and measure each process. The first time nobody waits for idle workers to end."""
        for each in self.talks():
            each.go.clear()
        if not until(lambda: all(each.resting.is_set() or not each.is_alive() for each in self.talks()), 2 * SOON):
            self.wrong.append("sessions do not come to rest: " + ", ".join(
                f"{each.session.id} turn {each.number}" for each in self.talks() if not each.resting.is_set()))
        if warm:
            self.count_threads()
        gc.collect()
        self.measured.append([(pid, talk.descriptors(pid), talk.resident(pid))
                              for pid in ["self", *(agent.pid for agent in self.agents)]])

    def count_threads(self):
        wanted = sorted(self.before[1] + ["acp process", "acp reader", "acp stderr", "acp writer"] * len(self.agents))
        if not until(lambda: talk.threads() == wanted, IDLE + SOON):
            self.wrong.append(f"the client has the threads {talk.threads()}, expected {wanted}")
        for agent in self.agents:  # the main thread, the reader and the writer
            if not until(lambda agent=agent: len(os.listdir(f"/proc/{agent.pid}/task")) == 3, IDLE + SOON):
                self.wrong.append(f"agent {agent.number} has more than 3 threads at rest")

    def judge(self):
        for (pid, files, size), (_, later, grown) in zip(self.measured[0], self.measured[-1]):
            if later != files:
                self.wrong.append(f"process {pid} had {files} file descriptors, has {later}")
            if grown - size > GROWTH:
                self.wrong.append(f"process {pid} grew by {grown - size >> 20} MiB")
        for agent in self.agents:
            for each in agent.talks:
                about = f"session of agent {agent.number}, version {agent.version}: "
                self.wrong += [about + wrong for wrong in each.wrong]
                if each.error is not None:
                    self.wrong.append(about + f"ended with {each.error!r}")
            if agent.stderr:
                self.wrong.append(f"agent {agent.number} wrote: " + "\n".join(agent.stderr[:30]))

    def gone(self):
        """After the clients were closed nothing may be left."""
        for each in self.talks():
            each.join(SOON)
        if any(each.is_alive() for each in self.talks()):
            self.wrong.append("a session goes on after its client was closed")
        for agent in self.agents:
            if left := talk.members(agent.pid):
                self.wrong.append(f"of agent {agent.number} the processes {left} are left")
        if not until(lambda: talk.threads() == self.before[1]):
            self.wrong.append(f"threads are left: {talk.threads()}")
        if (files := talk.descriptors()) != self.before[0]:
            self.wrong.append(f"file descriptors: {self.before[0]} before, {files} after")

    def summary(self):
        count = self.tally
        grown = max(b[2] - a[2] for a, b in zip(self.measured[0], self.measured[-1])) if self.measured else 0
        return (f"{count['turns']} turns, {count['permissions']} permissions, {count['forms']} forms, "
                f"{count['cancels']} cancels, {count['timeout']} timeouts, {count['leave'] + count['drop']} left, "
                f"{count['sessions']} sessions, grew by {max(0, grown) >> 20} MiB")


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60
    seed = sys.argv[2] if len(sys.argv) > 2 else "0"
    logged = talk.Faults()
    logging.getLogger("acp").addHandler(logged)
    logging.getLogger("acp").propagate = False
    failed, lines = 0, []
    for what, versions, sessions, time_each in (
            ("64 sessions on 1 agent, version 1", [1], 64, seconds / 2),
            ("64 sessions on 1 agent, version 2", [2], 64, seconds / 2),
            ("2 sessions on each of 32 agents, versions 1 and 2", [1, 2] * 16, 2, seconds)):
        # Nothing waits for ever: should all deadlines fail, this shows where each thread stands and ends the process.
        faulthandler.dump_traceback_later(time_each * 3 + 10 * SOON, exit=True)
        part = Part(versions, sessions, time_each, seed)
        part.wrong += logged.taken()
        failed += len(part.wrong)
        for wrong in part.wrong:
            print(f"FAILED {what} (seed {seed}): {wrong[:3000]}", flush=True)
        lines.append(f"{what} for {time_each:.0f} s: {part.summary()}, {len(part.wrong)} lost")
        print(lines[-1], flush=True)
    faulthandler.cancel_dump_traceback_later()
    print(f"load: {'; '.join(lines)}; {failed} failed (seed {seed})")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
