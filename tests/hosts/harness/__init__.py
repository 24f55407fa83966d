"""Real test hosts: a systemd of its own in a container, sshd, stand-in GPUs and engines. Tests use what is named here.

`Pool` boots and cleans hosts, `TestHost` is one of them; `bystanders` starts what belongs to somebody else. The package
knows nothing of the daemon under test. Needs root, systemd-container and debootstrap when a host is made, not before.
"""

from harness.host import TestHost
from harness.pool import Pool

__all__ = ["Pool", "TestHost"]
