"""Run by Python for Windows: what the platform room does with processes, locks, files and caps; prints it as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from ggferry.support.platform import _jobs, here, windows

SLEEP = "import time; time.sleep(60)"
PARENT = """
import subprocess, sys, time
from ggferry.support.platform import here
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], **here.group_options())
if sys.argv[1] == "hold":
    here.hold_group(child)
print(child.pid, flush=True)
time.sleep(60)
"""
HOLDER = """
import os, sys
from ggferry.support.platform import here
fd = here.open_file(sys.argv[1], os.O_RDWR)
here.lock(fd)
here.lock_folder(sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""
found: dict[str, object] = {}


def alive(pid: int) -> bool:
    return here.start_time(pid) is not None


def gone(pid: int) -> bool:
    for _ in range(50):
        if not alive(pid):
            return True
        time.sleep(0.1)
    return False


# a group ends with all that it started
made = subprocess.Popen([sys.executable, "-c", PARENT, ""], stdout=subprocess.PIPE, **here.group_options())
here.hold_group(made)
child = int(made.stdout.readline())
found["in a job"], found["child lives"] = made in windows._groups, alive(child)
here.end_group(made)
found["status"], found["child is gone"] = made.wait(10), gone(child)

# and with the process that made it
made = subprocess.Popen([sys.executable, "-c", PARENT, "hold"], stdout=subprocess.PIPE)
child = int(made.stdout.readline())
found["grandchild lives"] = alive(child)
made.kill()
made.wait()
found["grandchild is gone"] = gone(child)

# locks exclude other processes, and end with theirs
open("lock", "wb").close()
os.mkdir("folder")
command = [sys.executable, "-c", HOLDER, "lock", "folder"]
with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
    found["held"] = holder.stdout.readline().strip().decode()
    again = subprocess.run(command, input="", capture_output=True, text=True)
    found["refused"] = again.stderr.splitlines()[-1].partition(":")[0]
    holder.kill()
found["free again"] = subprocess.run(command, input="", capture_output=True, text=True).stdout.strip()

# files
with open("a", "wb") as file:
    file.write(b"1")
time.sleep(0.1)
with open("a", "ab") as file:
    file.write(b"2")
fd = here.open_file("a", os.O_RDWR)
found["one status"] = here.stat_file("a")[:9] == os.fstat(fd)[:9] and (
    here.stat_file("a").st_ctime_ns == os.fstat(fd).st_ctime_ns
)
found["place"] = os.path.basename(here.place_of(fd))
os.rename("a", "b")  # while it is open
found["renamed while open"] = here.pread(fd, 9, 0).decode()
os.close(fd)
here.pwrite(fd := here.nameless_file("."), b"abc", 5)
found["nameless"] = here.pread(fd, 3, 5).decode()
os.close(fd)  # Wine, as Windows before 10, keeps the name until then
found["nothing left"] = sorted(os.listdir()) == ["b", "folder", "lock"]
with open("c", "wb"):
    pass
try:
    here.rename_new("b", "c")
except FileExistsError:
    found["replaces nothing"] = True
found["reserved"] = []
for name in ("nul.gguf", "a?b", "x."):
    try:
        os.close(here.open_file(name, os.O_RDWR | os.O_CREAT))
    except OSError as error:
        found["reserved"].append(error.errno)
found["facts"] = [here.peak_memory() > 1 << 20, here.available_memory() > 1 << 20, here.free_bytes(".") > 0]
here.write_no_core()
here.cap_memory(4 << 30, 0)
found["caps are taken"] = True
found["no cap"] = _jobs.new_job() > 0
print(json.dumps(found))
