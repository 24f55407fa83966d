"""The stand-in GPUs: who holds how much memory. Used by the stand-in nvidia-smi and by whatever plays a GPU process.

A holder is a file /run/fake-gpu/PID-START with lines `GPU MIB`, good only while that very process lives and has
/dev/nvidiaGPU open. Only os is imported: nvidia-smi must answer within some 30 ms.
"""

import os

RUN = "/run/fake-gpu"
ETC = "/etc/fake-gpu"
TOTAL_MIB = 143771
LINGER_S = 0.27


def start_ticks(pid):
    """A process's start in clock ticks since boot, and its state letter. Raises OSError when there is none."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return int(fields[19]), fields[0].decode()


def count():
    """How many cards the host was built with."""
    with open(f"{ETC}/count") as file:
        return int(file.read())


def mode():
    """The faults in force: lists of words, one for each line of the mode file."""
    try:
        with open(f"{ETC}/mode") as file:
            return [line.split() for line in file if line.strip()]
    except FileNotFoundError:
        return []


def present():
    """The cards that the driver shows, by their number at build time; their place in the list is the index."""
    missing = {int(words[1]) for words in mode() if words[0] == "missing"}
    return [card for card in range(count()) if card not in missing]


def open_cards(pid):
    """The cards a process has open, or None when that cannot be read."""
    try:
        links = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
    except PermissionError:
        return None
    except OSError:
        return set()
    return {int(link[11:]) for link in links if link.startswith("/dev/nvidia") and link[11:].isdigit()}


def holders():
    """Rows (pid, card, MiB) of living holders, and rows (card, MiB) of those that died within the last 270 ms."""
    live, lingering = [], []
    for name in sorted(os.listdir(RUN)) if os.path.isdir(RUN) else []:
        pid, _, start = name.partition("-")
        if not start.isdigit():
            continue
        rows = _rows(f"{RUN}/{name}")
        cards = _cards_of(int(pid), int(start))
        if cards == set():
            lingering += _dead(f"{RUN}/{name}", rows)
        else:
            live += [(int(pid), card, mib) for card, mib in rows if cards is None or card in cards]
    return live, lingering


def own_pid():
    """The calling process's number as /proc here has it: one in a pid namespace of its own has another for itself."""
    return int(os.readlink("/proc/self"))


def hold(rows):
    """Makes the calling process a holder of `(card, MiB)` rows; the files stay open as long as it lives."""
    for device in ["nvidiactl", *sorted({f"nvidia{card}" for card, _ in rows})]:
        os.set_inheritable(os.open(f"/dev/{device}", os.O_RDWR), False)
    pid = own_pid()
    path = f"{RUN}/{pid}-{start_ticks(pid)[0]}"
    with open(path + ".new", "w") as file:
        file.writelines(f"{card} {mib}\n" for card, mib in rows)
    os.replace(path + ".new", path)


def _rows(path):
    try:
        with open(path) as file:
            return [(int(line.split()[0]), int(line.split()[1])) for line in file]
    except (OSError, ValueError, IndexError):
        return []


def _cards_of(pid, start):
    try:
        ticks, state = start_ticks(pid)
    except OSError:
        return set()
    return set() if ticks != start or state in "ZX" else open_cards(pid)


def _dead(path, rows):
    """The memory of a dead holder is free 270 ms after somebody first saw it dead."""
    import time  # seldom needed, and the rest must be fast

    try:
        first = os.stat(path + ".dead").st_mtime
    except FileNotFoundError:
        with open(path + ".dead", "w"):
            return rows
    except OSError:
        return []
    if time.time() - first < LINGER_S:
        return rows
    for stale in (path, path + ".dead"):
        try:
            os.unlink(stale)
        except OSError:
            continue
    return []
