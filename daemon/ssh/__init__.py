"""How the daemon reaches a host: commands over SSH, through jump hosts, sudo and containers, or on this machine.

The composition root makes one `Roads`; `observe`, `execute`, `ready`, `lease`, `install` and `doctor` see a `Road`.
The only package of the daemon that imports asyncssh. It knows no verb's meaning and decides nothing about a host.
"""

from daemon.ssh.argv import HELPER_PATH, Finished, Wrap
from daemon.ssh.door import SshSettings
from daemon.ssh.pool import Resolve, Roads, SshRoad
from daemon.ssh.road import LocalRoad, Road

__all__ = ["HELPER_PATH", "Finished", "LocalRoad", "Resolve", "Road", "Roads", "SshRoad", "SshSettings", "Wrap"]
