"""systemd's D-Bus on a host, heard through the SSH connection: hints of which host to look at now, never the truth.

The controller makes one `Watches`, tells it of each fine look, and asks it whether a host is watched. `wire` holds the
bytes, `conversation` one talk with one bus, `watches` the tasks. It sees a stream of bytes and knows no SSH.

The bytes are read here and not by dbus-fast: version 5.2.0's compiled reader ends the process (SIGSEGV) on a
PropertiesChanged message with one byte changed, about once in 350 such messages, and a host must not be able to end
the daemon. Only a message's header is read, its body never; and 2.9 MiB of resident memory are saved beside it.
"""

from daemon.bus.conversation import Manners
from daemon.bus.watches import Seams, Watches, WatchLimits

__all__ = ["Manners", "Seams", "WatchLimits", "Watches"]
