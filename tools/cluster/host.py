"""What this host is and already has: cgroups, capabilities, routes, ports, name servers, kernel settings.

Owns reading /proc, /sys and `ip`; it changes nothing but the kernel settings that it recorded before.
The parsers take text, so they are tested without such a host.
"""

import ipaddress
import json
import os
import socket
from collections.abc import Iterable
from pathlib import Path

from tools.cluster.errors import ClusterError, PrivilegeError, SettingsError
from tools.cluster.packages import program
from tools.cluster.processes import run

CAP_SYS_RESOURCE = 24

# Kernel settings that kubelet, kube-proxy or the CNI plugin change; `down` puts the old values back.
SYSCTLS = (
    "net/ipv4/ip_forward",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
Network = ipaddress.IPv4Network


def require_root(command: str) -> None:
    """Raise a clear error when the caller is not root.

    Raises:
        PrivilegeError: Says what to do instead.
    """
    if os.geteuid() != 0:
        raise PrivilegeError(
            f"`{command}` needs root, because containers need mounts, cgroups and network namespaces: run it "
            "with sudo, or use a cluster you have (DEMO_CLUSTER=current with KUBECONFIG)"
        )


def cgroup_version(mounts: str) -> int:
    """Return 2 when `/proc/mounts` text shows a unified hierarchy at /sys/fs/cgroup, otherwise 1.

    The hybrid layout (v1 controllers and a `unified` folder) counts as 1, as it does for kubelet.

    Raises:
        ClusterError: No cgroups are mounted at all.
    """
    found = False
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3 or not fields[1].startswith("/sys/fs/cgroup"):
            continue
        if fields[1] == "/sys/fs/cgroup" and fields[2] == "cgroup2":
            return 2
        found = found or fields[2] == "cgroup"
    if not found:
        raise ClusterError("no cgroups are mounted at /sys/fs/cgroup; kubelet cannot run on this host")
    return 1


def has_capability(status: str, bit: int) -> bool:
    """Return whether the text of `/proc/self/status` grants a capability."""
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> bit & 1)
    return False


def parse_routes(told: str) -> list[Network]:
    """Return the destinations in the answer of `ip -j -4 route show`, without the default route."""
    return [
        ipaddress.IPv4Network(route["dst"], strict=False)
        for route in json.loads(told or "[]")
        if route.get("dst") not in (None, "default")
    ]


def routes() -> list[Network]:
    """Return the destinations that this host routes other than by its default route."""
    return parse_routes(
        run([str(program("ip")), "-j", "-4", "route", "show"], what="read routes", timeout_seconds=10)
    )


def overlapping(cidr: str, taken: Iterable[Network]) -> Network | None:
    """Return the first of `taken` that shares an address with `cidr`."""
    network = ipaddress.IPv4Network(cidr)
    return next((other for other in taken if network.overlaps(other)), None)


def addresses() -> list[str]:
    """Return the host's global IPv4 addresses, the one of the default route first."""
    ip = str(program("ip"))
    told = json.loads(
        run([ip, "-j", "-4", "addr", "show", "scope", "global"], what="read addresses", timeout_seconds=10)
    )
    found = [info["local"] for link in told for info in link.get("addr_info", []) if "local" in info]
    default = json.loads(
        run([ip, "-j", "-4", "route", "show", "default"], what="read routes", timeout_seconds=10) or "[]"
    )
    devices = [route.get("dev") for route in default]
    first = [
        info["local"]
        for link in told
        if link.get("ifname") in devices
        for info in link.get("addr_info", [])
        if "local" in info
    ]
    return [*first, *(address for address in found if address not in first)]


def node_address(wanted: str | None, remembered: str | None) -> str:
    """Return the address that the node uses.

    Args:
        wanted: What the user asked for; must be one of the host's.
        remembered: That of the last `up`; kept while the host still has it.

    Raises:
        SettingsError: The host has no such address.
    """
    have = addresses()
    if wanted is not None and wanted not in have:
        raise SettingsError(f"node address {wanted} is not one of this host's: {', '.join(have) or 'none'}")
    if wanted is None and not have:
        raise SettingsError(
            "this host has no IPv4 address other than loopback; add one and give it as --node-ip"
        )
    if wanted is not None:
        return wanted
    return remembered if remembered in have else have[0]


def port_is_free(port: int) -> bool:
    """Return whether a TCP port can be bound on all addresses right now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


def choose_resolv_conf(candidates: Iterable[Path]) -> Path | None:
    """Return the first file that names a server which pods can reach, so not a loopback one.

    A pod that asks a loopback server asks itself; CoreDNS then forwards to itself for ever.
    """
    for path in candidates:
        if not path.is_file():
            continue
        fields = [line.split() for line in path.read_text().splitlines()]
        servers = [words[1] for words in fields if len(words) >= 2 and words[0] == "nameserver"]
        if any(not server.startswith("127.") and server != "::1" for server in servers):
            return path
    return None


def resolv_conf() -> Path | None:
    """Return the host's resolv.conf that pods can use."""
    return choose_resolv_conf((Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf")))


def read_sysctls(root: Path = Path("/proc/sys")) -> dict[str, str]:
    """Return the present values of the kernel settings that the cluster's programs change."""
    return {name: (root / name).read_text().strip() for name in SYSCTLS if (root / name).is_file()}


def restore_sysctls(values: dict[str, str], root: Path = Path("/proc/sys")) -> None:
    """Put recorded kernel settings back; one that cannot be written (a container's /proc) stays."""
    for name, value in values.items():
        path = root / name
        if name not in SYSCTLS or not path.is_file() or path.read_text().strip() == value:
            continue
        try:
            path.write_text(value)
        except OSError:
            continue


def refuse_second_kube_proxy(nft_tables: str, table: str) -> None:
    """Raise when another kube-proxy owns the rules that ours would overwrite.

    Args:
        nft_tables: What `nft list tables` prints.
        table: Family and name of kube-proxy's table.

    Raises:
        SettingsError: Says how to get on.
    """
    if f"table {table}" in nft_tables.splitlines():
        raise SettingsError(
            f"another Kubernetes runs on this host (nft table `{table}` exists): use it, stop it, "
            f"or if it is a left-over remove it with `nft delete table {table}`"
        )
